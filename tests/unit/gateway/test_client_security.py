"""The clients and the load test at a gate with API keys and TLS: the real process, a certificate made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tritonclient.grpc as triton

from bistream.client import say, say_http
from bistream.client.connection import API_KEY_VARIABLE, ClientSecurity
from gateway.settings import TlsSettings
from tests.unit.client.fake_server import Speakers
from tests.unit.gateway.rig import FakeTriton, certificate
from tests.unit.gateway.test_process import ROOT, Process

KEY, WRONG = "the-right-key-0123", "a-wrong-key-456789"


class Guarded(Process):
    """A gate with one key, and with TLS for clients of its own authority where ``pem`` is given."""

    def __init__(self, folder: Path, server: FakeTriton, pem: TlsSettings | None) -> None:
        keys = folder / "keys"
        keys.write_text(f"{KEY} anna\n", encoding="utf-8")
        self._pem = pem
        tls = None if pem is None else TlsSettings(pem.certificate, pem.private_key, pem.certificate)
        super().__init__(folder, server, keys_file=keys, tls=tls)

    def connect(self) -> triton.InferenceServerClient:
        return triton.InferenceServerClient(self.grpc_url, **ClientSecurity(None, self._pem is not None, *self.files).grpc_options())

    @property
    def files(self) -> tuple[str | None, str | None, str | None]:
        if self._pem is None:
            return None, None, None
        return str(self._pem.certificate), str(self._pem.certificate), str(self._pem.private_key)

    @property
    def tls_options(self) -> list[str]:
        if self._pem is None:
            return []
        names = ("--tls-ca", "--tls-certificate", "--tls-key")
        return [word for name, file in zip(names, self.files, strict=True) for word in (name, str(file))]


@pytest.fixture(scope="module", params=["keys", "keys and mutual TLS"])
def gate(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    server = FakeTriton(Speakers())
    with Guarded(folder, server, certificate(folder) if "TLS" in request.param else None) as gate:
        yield gate
    server.stop()


@pytest.fixture(autouse=True)
def no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)


def by_grpc(gate: Guarded, output: Path, *options: str) -> int:
    return say.main(["--server", gate.grpc_url, "--text", "Hi.", "--speaker-id", "anna", "--output", str(output), "--quiet", *options])


def by_http(gate: Guarded, output: Path, *options: str) -> int:
    return say_http.main(["--server", gate.http_url, "--text", "Hi.", "--output", str(output), *options])


CLIENTS = pytest.mark.parametrize("speak", [by_grpc, by_http])
Speak = Callable[..., int]


@CLIENTS
def test_the_right_key_speaks(gate: Guarded, speak: Speak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out.wav"
    assert speak(gate, output, *gate.tls_options, "--api-key", KEY) == 0
    assert soundfile.info(output).frames
    monkeypatch.setenv(API_KEY_VARIABLE, KEY)
    assert speak(gate, output, *gate.tls_options) == 0
    monkeypatch.setenv(API_KEY_VARIABLE, WRONG)
    assert speak(gate, output, *gate.tls_options, "--api-key", KEY) == 0, "the option counts"


@CLIENTS
@pytest.mark.parametrize("options", [["--api-key", WRONG], []])
def test_a_wrong_key_is_one_sentence(
    gate: Guarded, speak: Speak, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert speak(gate, tmp_path / "out.wav", *gate.tls_options, *options) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: UNAUTHENTICATED: No valid API key") and WRONG not in line


@CLIENTS
def test_without_what_tls_needs_there_is_no_connection(
    gate: Guarded, speak: Speak, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not gate.tls_options:
        pytest.skip("a gate without TLS")
    certificate(tmp_path)  # of somebody else
    other = [str(tmp_path / name) for name in ("certificate.pem", "key.pem")]
    ca = gate.tls_options[:2]
    for options in ([], ca, [*ca, "--tls-certificate", other[0], "--tls-key", other[1]], ["--tls-ca", other[0], *gate.tls_options[2:]]):
        assert speak(gate, tmp_path / "out.wav", "--api-key", KEY, *options) == 3, options
        (line,) = capsys.readouterr().err.splitlines()
        assert ("TLS" in line or "certificate" in line) and KEY not in line


def program(gate: Guarded, key: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments, "--server", gate.grpc_url, "--text", "Hi.", *gate.tls_options]
    environment = {**os.environ, API_KEY_VARIABLE: key}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_the_load_test_lets_itself_in(gate: Guarded, tmp_path: Path) -> None:
    if not gate.tls_options:
        pytest.skip("the same, less its TLS")
    soundfile.write(tmp_path / "voice.wav", np.zeros(16000, np.float32), 16000)
    load = ["benchmarks/first_audio.py", "--closed", "2", "--reference-audio", str(tmp_path / "voice.wav"), "--reference-text", "x"]
    done = program(gate, KEY, *load)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["metrics"]["runs"][0]["failed"] == 0
    refused = program(gate, WRONG, *load)
    assert refused.returncode == 1 and refused.stdout == ""
    (line,) = refused.stderr.splitlines()
    assert "No valid API key" in line and WRONG not in line
