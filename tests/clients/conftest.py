"""What the clients speak with: the interfaces before a stand-in, which speaks 20 ms for each character, and before the real server."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from interfaces.settings import Settings
from tests.formats import SAMPLE_RATE, SAMPLES_PER_TOKEN
from tests.triton.conftest import serve, wait_for
from tests.triton.interfaces_process import Interfaces
from tests.unit.client.fake_server import SAMPLES_PER_CHARACTER
from tests.unit.gateway.rig import certificate
from tests.unit.interfaces.rig import reading, running

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = Path(os.environ.get("BISTREAM_CLIENTS", ROOT / "build/clients"))  # `run.sh test-clients` makes them
PROGRAM_TIMEOUT_S = 600
# As many as the programs have open at a time, and longer texts than the other tests send.
REAL_LIMITS = {"max_sessions": "16", "cosyvoice2_bistream.max_sessions": "8", "cosyvoice2_bistream.max_text_chars": "4000"}


@dataclass(frozen=True)
class Front:
    """address: of the interfaces, host:port; grpc: of the server behind them."""

    address: str
    grpc: str
    is_real: bool

    def check_duration(self, seconds: float, text: str, tolerance_s: float = 0.0) -> None:
        """Of what was heard of this text: exact before the stand-in; whole speech tokens before the real server with its random weights."""
        if not self.is_real:
            assert seconds == pytest.approx(len(text) * SAMPLES_PER_CHARACTER / SAMPLE_RATE, abs=tolerance_s + 1e-6)
        elif tolerance_s:
            assert seconds > 0.2
        else:
            assert seconds > 0 and round(seconds * SAMPLE_RATE) % SAMPLES_PER_TOKEN == 0

    def check_idle(self) -> None:
        """Whatever the client did, nothing of it is left."""
        wait_for(lambda: self._gauge("utterances") == 0, "the end of all utterances")

    def _gauge(self, name: str) -> float:
        connection = http.client.HTTPConnection(self.address, timeout=10)
        try:
            connection.request("GET", "/metrics")
            (value,) = re.findall(rf"^bistream_interfaces_{name} (\S+)$", connection.getresponse().read().decode(), re.MULTILINE)
            return float(value)
        finally:
            connection.close()


def _last_line(output: str) -> Any:
    return json.loads(output.splitlines()[-1])


def found_by(environment: str, program: str, *arguments: str, parse: Callable[[str], Any] = _last_line, **variables: str) -> Any:
    """What a program says, run in one of ``ENVIRONMENTS``; skips the test where it was not made."""
    python = ENVIRONMENTS / environment / "bin/python"
    if not python.exists():
        pytest.skip(f"there is no {python}; run: bash run.sh test-clients")
    return parse(_output([str(python), program, *arguments], {"PYTHONPATH": str(ROOT), **variables}))


def found_by_node(program: str, *arguments: str, **variables: str) -> Any:
    """As ``found_by``, of a program for Node."""
    node, packages = shutil.which("node"), ENVIRONMENTS / "node/node_modules"
    if node is None or not packages.is_dir():
        pytest.skip(f"there is no Node, or no {packages}; install Node and run: bash run.sh test-clients")
    return _last_line(_output([node, program, *arguments], {"NODE_PATH": str(packages), **variables}))


def _output(words: list[str], variables: dict[str, str]) -> str:
    known = {**os.environ, **variables}
    done = subprocess.run(words, cwd=ROOT, env=known, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def seconds_of(path: Path) -> float:
    """Of a WAV file."""
    with wave.open(str(path)) as file:
        return float(file.getnframes() / file.getframerate())


@pytest.fixture(scope="session", params=["standin", "real"])
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    if request.param == "standin":
        with reading() as standin, running(standin.address, speak_after_s=Settings.speak_after_s) as made:
            yield Front(f"127.0.0.1:{made.port}", standin.address, is_real=False)
        return
    servers = serve(tmp_path_factory.mktemp("server"), request.getfixturevalue("tiny_model_dir"), **REAL_LIMITS)
    with contextlib.closing(servers):
        server = next(servers)
        interfaces = Interfaces(server.grpc_url, tmp_path_factory.mktemp("interfaces"), voice="anna")
        try:
            yield Front(f"127.0.0.1:{interfaces.port}", server.grpc_url, is_real=True)
            assert "Traceback" not in interfaces.log.read_text(encoding="utf-8")
        finally:
            interfaces.kill()


@dataclass(frozen=True)
class TlsFront:
    address: str
    certificate: Path


@pytest.fixture
def tls_front(front: Front, tmp_path: Path) -> Iterator[TlsFront]:
    """The same behind TLS, with a certificate of its own."""
    tls = certificate(tmp_path)
    assert tls.certificate is not None and tls.private_key is not None
    if not front.is_real:
        settings = Settings(port=0, tls_certificate=tls.certificate, tls_key=tls.private_key)
        with running(front.grpc, settings=settings) as made:
            yield TlsFront(f"127.0.0.1:{made.port}", tls.certificate)
        return
    options = ("--tls-certificate", str(tls.certificate), "--tls-key", str(tls.private_key))
    interfaces = Interfaces(front.grpc, tmp_path, *options, voice="anna")
    try:
        yield TlsFront(f"127.0.0.1:{interfaces.port}", tls.certificate)
    finally:
        interfaces.kill()
