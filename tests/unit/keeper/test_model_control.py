"""The keeper's requests to load models anew, against an HTTP server that answers as Triton does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bistream.keeper.host import ServerError
from bistream.keeper.model_control import ModelControl, is_ready

KEY = "secret"


class Triton(BaseHTTPRequestHandler):
    seen: list[str] = []

    def do_GET(self) -> None:
        self._reply(200 if self.path == "/v2/health/ready" else 404, b"")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["admin-key"] != KEY:
            self._reply(403, b"restricted")
        elif "broken" in self.path:
            self._reply(400, b"hift.pt is missing")
        else:
            self.seen.append(self.path)
            self._reply(200, b"")

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Silence."""


@pytest.fixture
def url() -> Iterator[str]:
    Triton.seen.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Triton) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_models_are_unloaded_and_loaded_with_the_key(url: str) -> None:
    control = ModelControl(url, KEY, load_timeout_s=240.0)
    control.unload("audio_tokenizer")
    control.load("audio_tokenizer")
    assert Triton.seen == [f"/v2/repository/models/audio_tokenizer/{action}" for action in ("unload", "load")]


@pytest.mark.parametrize(("key", "model", "reason"), [("wrong", "a", "restricted"), (KEY, "broken", "hift.pt is missing")])
def test_a_refusal_is_an_error_with_the_reason(url: str, key: str, model: str, reason: str) -> None:
    with pytest.raises(ServerError, match=f"could not load model {model}: .*{reason}"):
        ModelControl(url, key, load_timeout_s=240.0).load(model)


def test_a_server_that_is_gone_is_an_error_and_not_ready(url: str) -> None:
    assert is_ready(url)
    gone = "127.0.0.1:1"
    assert not is_ready(gone)
    with pytest.raises(ServerError, match="could not unload model a"):
        ModelControl(gone, KEY, load_timeout_s=240.0).unload("a")
