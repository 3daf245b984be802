"""HTTP health endpoints of the keeper, for load balancers: Triton itself reports ready while it drains and when a model is dead.

The paths are Triton's own, so that a probe only changes its port. Only the path of a request is used. Started by ``scripts/serve.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from bistream.keeper.start_failure import PortInUseError

LIVE, READY = "/v2/health/live", "/v2/health/ready"
CONNECTION_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.1  # delay of ``shutdown``, at most


class HealthServer:
    """A context manager that serves while it is open.

    ``LIVE``: 200 as long as the keeper runs. ``READY``: 200 while new sessions are accepted, else 503. port: 0 chooses a free one.
    """

    def __init__(self, address: str, port: int, is_ready: Callable[[], bool]) -> None:
        try:
            self._server = ThreadingHTTPServer((address, port), _handler(is_ready))
        except OSError as error:
            raise PortInUseError(f"Health port {port} cannot be used ({error.strerror}); choose another one.") from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_INTERVAL_S,), name="bistream-health", daemon=True)

    def __enter__(self) -> HealthServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(is_ready: Callable[[], bool]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CONNECTION_TIMEOUT_S

        def do_GET(self) -> None:
            known = {LIVE: 200, READY: 200 if is_ready() else 503}
            self.send_response(known.get(self.path, 404))
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            """Probes are too frequent to log."""

    return Handler
