"""The offline client over HTTP: upstream's request, and the limit that keeps the server alive."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from bistream.client.exit_codes import EXIT_CONNECTION, EXIT_SERVER
from bistream.client.say_http import MAX_BODY_BYTES, main, request_body
from bistream.errors import InvalidInputError


class Server(HTTPServer):
    """Answers every POST with ``answer`` and records the requests."""

    def __init__(self, status: int, answer: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.answer = status, answer
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.keys: list[str | None] = []
        self.redirect = ""
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def stop(self) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, json.loads(body)))
        self.server.keys.append(self.headers["Authorization"])
        answer = json.dumps(self.server.answer).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(answer)))
        if self.server.redirect:
            self.send_header("Location", self.server.redirect)
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self) -> None:
        """The configuration of the model, whatever is asked for."""
        self.server.keys.append(self.headers["Authorization"])
        answer = b'{"parameters": {}}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def good_server() -> Iterator[Server]:
    waveform = [round(float(x), 3) for x in np.linspace(-0.5, 0.5, 4800)]
    server = Server(200, {"outputs": [{"name": "waveform", "datatype": "FP32", "shape": [4800], "data": waveform}]})
    yield server
    server.stop()


def test_upstreams_request_becomes_a_wav(good_server: Server, tmp_path: Path) -> None:
    recording = np.clip(np.random.default_rng(0).normal(0, 0.2, 16000), -1, 1).astype(np.float32)
    soundfile.write(tmp_path / "voice.wav", recording, 16000, subtype="FLOAT")
    arguments = ["--reference-audio", str(tmp_path / "voice.wav"), "--reference-text", "Words.", "--output", str(tmp_path / "out.wav")]
    assert main(["--server", good_server.address, "--text", "Hello \u4f60.", *arguments]) == 0
    ((path, body),) = good_server.requests
    assert path == "/v2/models/cosyvoice2/infer?request_id=0"
    assert list(body) == ["inputs"]
    wav, length, transcript, text = body["inputs"]
    assert (wav["name"], wav["datatype"], wav["shape"]) == ("reference_wav", "FP32", [1, 16000])
    np.testing.assert_allclose(wav["data"][0], recording, atol=1e-5)
    assert length == {"name": "reference_wav_len", "shape": [1, 1], "datatype": "INT32", "data": [[16000]]}
    assert transcript == {"name": "reference_text", "shape": [1, 1], "datatype": "BYTES", "data": ["Words."]}
    assert text == {"name": "target_text", "shape": [1, 1], "datatype": "BYTES", "data": ["Hello \u4f60."]}
    samples, rate = soundfile.read(tmp_path / "out.wav")
    assert (rate, len(samples)) == (24000, 4800)
    np.testing.assert_allclose(samples, np.linspace(-0.5, 0.5, 4800), atol=1e-3)


def test_six_seconds_fit_and_what_does_not_is_refused_before_it_is_sent(good_server: Server, tmp_path: Path) -> None:
    loud = np.random.default_rng(0).uniform(-1, 1, 8 * 16000).astype(np.float32)
    assert len(request_body("Hello.", loud[: 6 * 16000], "Words.")) <= MAX_BODY_BYTES
    with pytest.raises(InvalidInputError, match="bistream say"):
        request_body("Hello.", loud, "Words.")
    soundfile.write(tmp_path / "long.wav", loud, 16000)
    arguments = ["--reference-audio", str(tmp_path / "long.wav"), "--reference-text", "Words.", "--output", str(tmp_path / "out.wav")]
    assert main(["--server", good_server.address, "--text", "Hello.", *arguments]) == 2
    assert good_server.requests == []


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ({"error": "INVALID_INPUT: The text is empty. [session s]"}, "error: INVALID_INPUT: The text is empty.\n"),
        (
            {"error": "Request for unknown model: 'x' is not found"},
            "error: NOT_SERVED: The server has no such model; check the model name and its version. "
            "Triton said: Request for unknown model: 'x' is not found\n",
        ),
        (
            {"error": "WRONG_CALL: This model streams; call it with ModelStreamInfer over gRPC."},
            "error: WRONG_CALL: The model streams on this server; use `bistream say`, or serve it with `bash run.sh 2 3 offline`.\n",
        ),
        ({}, "error: ENGINE_ERROR: The server failed and gave no code; try again. It said: The server answered with status 400.\n"),
    ],
)
def test_a_refusal_is_exit_code_1(answer: dict[str, Any], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(400, answer)
    assert main(["--server", server.address, "--text", "Hi.", "--output", str(tmp_path / "out.wav")]) == 1
    server.stop()
    assert capsys.readouterr().err == line
    assert not (tmp_path / "out.wav").exists()


def test_no_server_is_exit_code_3_and_wrong_usage_2(tmp_path: Path) -> None:
    assert main(["--server", "127.0.0.1:1", "--text", "Hi.", "--output", str(tmp_path / "out.wav")]) == 3
    with pytest.raises(SystemExit) as raised:
        main(["--text", "Hi.", "--reference-text", "Words."])
    assert raised.value.code == 2


def test_another_host_does_not_get_the_key(good_server: Server, tmp_path: Path) -> None:
    redirecting = Server(302, {})
    redirecting.redirect = f"http://{good_server.address}/elsewhere"
    arguments = ["--text", "Hi.", "--output", str(tmp_path / "out.wav"), "--api-key", "k" * 16]
    assert main(["--server", redirecting.address, *arguments]) != 0
    redirecting.stop()
    assert redirecting.keys == [f"Bearer {'k' * 16}"] and good_server.keys == [None]


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"outputs"',
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{"outputs"',
        b"HTTP/1.1 503 Busy\r\nContent-Length: 1000\r\n\r\n{",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    ],
)
def test_an_answer_that_is_cut_off_is_one_line(answer: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            with contextlib.suppress(OSError):  # until the door is shut
                while True:
                    connection, _ = door.accept()
                    with connection:
                        connection.recv(1 << 20)
                        connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        address = f"127.0.0.1:{door.getsockname()[1]}"
        code = main(["Hi", "--server", address, "--output", str(tmp_path / "out.wav")])
        door.shutdown(socket.SHUT_RDWR)
        server.join()
    assert code in (EXIT_SERVER, EXIT_CONNECTION)
    assert len(capsys.readouterr().err.splitlines()) == 1
