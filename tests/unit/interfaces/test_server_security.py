"""API keys and TLS between the interfaces and their servers: before real gates with a certificate that is made here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bistream.client.connection import API_KEY_VARIABLE, INSECURE, ClientSecurity
from gateway.keys import Keys
from gateway.settings import TlsSettings
from interfaces.core import servers
from interfaces.core.caller import Caller
from interfaces.core.errors import UnreachableError
from interfaces.core.servers import Server, Servers
from interfaces.core.service import SpeechService
from interfaces.core.speech import Audio
from interfaces.core.voices import VoiceStore
from interfaces.options import parse_arguments
from interfaces.settings import InterfaceLimits
from tests.unit.client.fake_server import SAMPLES_PER_CHARACTER, Reader
from tests.unit.gateway.rig import GateRig, certificate
from tests.unit.interfaces.rig import ANNA

KEY, WRONG = "the-right-key-0123", "a-wrong-key-456789"
WAIT_S = 120.0


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> TlsSettings:
    return certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> TlsSettings:
    return certificate(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(f"{KEY} interfaces\n", encoding="utf-8")
    return Keys.read(file)


@pytest.fixture(scope="module")
def gate(pem: TlsSettings, keys: Keys) -> Iterator[GateRig]:
    """With a key, and TLS for clients of its own authority."""
    with GateRig(Reader(), keys=keys, tls=TlsSettings(pem.certificate, pem.private_key, pem.certificate)) as made:
        yield made


@pytest.fixture(scope="module")
def open_gate() -> Iterator[GateRig]:
    with GateRig(Reader()) as made:
        yield made


def security(pem: TlsSettings, api_key: str | None = KEY) -> ClientSecurity:
    return ClientSecurity(api_key, True, *map(str, (pem.certificate, pem.certificate, pem.private_key)))


async def spoken(servers: Servers, text: str) -> int:
    """Characters that were heard."""
    speech = SpeechService(servers, VoiceStore((ANNA,)), InterfaceLimits()).open("anna", Caller(None, "10.0.0.1"))
    try:
        await speech.append(text[:2])
        await speech.end(text[2:])
        return sum([len(part.samples) async for part in speech if isinstance(part, Audio)]) // SAMPLES_PER_CHARACTER
    finally:
        await speech.close()


def refusal(address: str, given: ClientSecurity) -> str:
    """Why the server is not ready; its clients are told nothing of that."""

    async def ask() -> str:
        servers = Servers([address], given)
        try:
            await servers.check()
            assert not servers.any_ready()
            with pytest.raises(UnreachableError) as caught:
                await spoken(servers, "Hello")
            assert address not in str(caught.value) and "ertificate" not in str(caught.value) and "key" not in str(caught.value)
            return servers.all[0].reason
        finally:
            await servers.close()

    return asyncio.run(asyncio.wait_for(ask(), WAIT_S))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_sessions_pass_a_gate_with_keys_and_mutual_tls(gate: GateRig, pem: TlsSettings, host: str) -> None:
    servers = Servers([f"{host}:{gate.grpc_port}"], security(pem))
    try:
        await servers.check()
        assert servers.any_ready()
        for _ in range(3):
            assert await spoken(servers, "Hello") == 5
        assert len(servers.all[0].client.channels) == 1
    finally:
        await servers.close()


def test_a_wrong_key_is_told_the_operator(gate: GateRig, pem: TlsSettings, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for key in (None, WRONG):
        assert "BISTREAM_API_KEY" in refusal(gate.grpc_url, replace(security(pem), api_key=key))
    assert "BISTREAM_API_KEY" in caplog.text and WRONG not in caplog.text and KEY not in caplog.text


def test_certificates_that_do_not_fit_are_told_the_operator(gate: GateRig, pem: TlsSettings, stranger: TlsSettings) -> None:
    right = security(pem)
    assert "certificate is not trusted" in refusal(gate.grpc_url, replace(right, ca=str(stranger.certificate)))
    assert "certificate is not trusted" in refusal(gate.grpc_url, replace(right, ca=None))
    # whom the server does not know learns it from the end of the connection
    assert refusal(gate.grpc_url, replace(right, certificate=None, key=None))
    assert refusal(gate.grpc_url, replace(right, certificate=str(stranger.certificate), key=str(stranger.private_key)))


def test_a_certificate_of_another_name_is_refused(gate: GateRig, pem: TlsSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    def another(address: str, security: ClientSecurity) -> Server:
        return Server(address, replace(security, server_name="speech.example"))

    monkeypatch.setattr(servers, "Server", another)
    assert "certificate is not trusted" in refusal(gate.grpc_url, security(pem))


def test_tls_on_one_side_only_is_told_the_operator(gate: GateRig, open_gate: GateRig, pem: TlsSettings) -> None:
    assert "TLS" in refusal(gate.grpc_url, ClientSecurity(KEY))
    assert "TLS" in refusal(open_gate.grpc_url, security(pem))


def test_options_are_those_of_the_clients_with_a_prefix(pem: TlsSettings, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(pem.certificate), str(pem.certificate), str(pem.private_key)]
    names = ("--server-tls-ca", "--server-tls-certificate", "--server-tls-key")
    words = [word for pair in zip(names, files, strict=True) for word in pair]
    assert parse_arguments(["--server-api-key", KEY, *words], {}).server_security == security(pem)
    assert parse_arguments([], {API_KEY_VARIABLE: KEY}).server_security == ClientSecurity(KEY)
    assert parse_arguments(["--server-tls"], {}).server_security == ClientSecurity(tls=True)
    assert parse_arguments([], {}).server_security == INSECURE and KEY not in repr(parse_arguments([], {API_KEY_VARIABLE: KEY}))
    own = ["--tls-certificate", files[0], "--tls-key", files[2]]  # towards our clients: nothing towards the servers
    assert parse_arguments(own, {}).server_security == INSECURE
    for wrong in (["--server-tls-ca", "/nowhere.pem"], ["--server-tls-certificate", files[0]], ["--server-api-key", "a b"]):
        with pytest.raises(SystemExit):
            parse_arguments(wrong, {})
        assert wrong[0] in capsys.readouterr().err.splitlines()[-1]
