"""The clients at a gate with API keys and mutual TLS: the real process, a certificate made here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import soundfile
import tritonclient.grpc as triton

from bistream.client import say, say_http
from bistream.client.connection import API_KEY_VARIABLE, ClientSecurity
from gateway.settings import TlsSettings
from tests.unit.client.fake_server import Speakers
from tests.unit.gateway.rig import FakeTriton, certificate
from tests.unit.gateway.test_process import Process

KEY, WRONG = "the-right-key-0123", "a-wrong-key-456789"


class Guarded(Process):
    """A gate with one key, and with TLS for clients of its own authority."""

    def __init__(self, folder: Path, server: FakeTriton, pem: TlsSettings) -> None:
        keys = folder / "keys"
        keys.write_text(f"{KEY} anna\n", encoding="utf-8")
        self._pem = pem
        super().__init__(folder, server, keys_file=keys, tls=TlsSettings(pem.certificate, pem.private_key, pem.certificate))

    def connect(self) -> triton.InferenceServerClient:
        return triton.InferenceServerClient(self.grpc_url, **ClientSecurity(None, True, *self.files).grpc_options())

    @property
    def files(self) -> tuple[str, str, str]:
        return str(self._pem.certificate), str(self._pem.certificate), str(self._pem.private_key)

    @property
    def tls_options(self) -> list[str]:
        names = ("--tls-ca", "--tls-certificate", "--tls-key")
        return [word for name, file in zip(names, self.files, strict=True) for word in (name, file)]


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    server = FakeTriton(Speakers())
    with Guarded(folder, server, certificate(folder)) as gate:
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
    certificate(tmp_path)  # of somebody else
    other = [str(tmp_path / name) for name in ("certificate.pem", "key.pem")]
    ca = gate.tls_options[:2]
    for options in ([], ca, [*ca, "--tls-certificate", other[0], "--tls-key", other[1]], ["--tls-ca", other[0], *gate.tls_options[2:]]):
        assert speak(gate, tmp_path / "out.wav", "--api-key", KEY, *options) == 3, options
        (line,) = capsys.readouterr().err.splitlines()
        assert ("TLS" in line or "certificate" in line) and KEY not in line
