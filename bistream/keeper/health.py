"""HTTP health endpoints of the keeper, for load balancers: Triton itself reports ready while it drains and when a model is dead.

The paths are Triton's own, so that a probe only changes its port. Only the path of a request is used. The answer to a request for readiness
holds one sentence for people. The same port serves the metrics (``metrics.py``). Started by ``scripts/serve.py``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from bistream.keeper.host import ServerError

logger = logging.getLogger(__name__)

LIVE, READY, METRICS = "/v2/health/live", "/v2/health/ready", "/metrics"
CONNECTION_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.1  # delay of ``shutdown``, at most


class HealthServer:
    """A context manager that serves while it is open.

    ``LIVE``: 200 as long as the keeper runs. ``READY``: 200 while new sessions are accepted, else 503, with the sentence of ``describe``.
    ``METRICS``: what ``metrics`` returns, Prometheus' text format; 404 without it. port: 0 chooses a free one.
    """

    def __init__(
        self,
        address: str,
        port: int,
        is_ready: Callable[[], bool],
        metrics: Callable[[], str] | None = None,
        describe: Callable[[], str] = str,
    ) -> None:
        try:
            self._server = _Server((address, port), _handler(is_ready, metrics, describe))
        except OSError as error:
            raise ServerError(f"Health port {port} cannot be used ({error.strerror}); choose another one.") from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_INTERVAL_S,), name="bistream-health", daemon=True)

    def __enter__(self) -> HealthServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A probe that hangs up, or no thread for it: not worth the stack trace that the base class prints for each."""
        logger.debug("a health request failed", exc_info=True)


def _handler(is_ready: Callable[[], bool], metrics: Callable[[], str] | None, describe: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CONNECTION_TIMEOUT_S

        def do_GET(self) -> None:
            if self.path == METRICS and metrics is not None:
                self._answer(200, "text/plain; version=0.0.4; charset=utf-8", metrics())
            elif self.path == READY:
                self._answer(200 if is_ready() else 503, "text/plain; charset=utf-8", describe())
            else:
                self._answer(200 if self.path == LIVE else 404, "text/plain; charset=utf-8", "")

        do_HEAD = do_GET

        def _answer(self, status: int, content_type: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Probes are too frequent to log."""

    return Handler
