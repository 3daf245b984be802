"""Envoy itself, with our configuration, before servers that compute nothing: sessions when a server drains, dies or is missing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bistream.client.client import BistreamClient, ClientSession
from bistream.errors import EngineError
from bistream.keeper.envoy_config import ProxySettings, ServerAddress, envoy_config
from bistream.keeper.health import HealthServer
from gateway.settings import TlsSettings
from scripts.serve_gpus import find_envoy, is_open
from tests.ports import port, ports
from tests.triton.conftest import wait_for

ROOT = Path(__file__).resolve().parents[3]
LOOPBACK = "127.0.0.1"
SETTINGS = ProxySettings(LOOPBACK, 18001, LOOPBACK, 18000, 19901)
HERE = ServerAddress(LOOPBACK, 8101, 8100, 8103)


def validate(text: str, folder: Path) -> None:
    config = folder / "envoy.yaml"
    config.write_text(text, encoding="utf-8")
    done = subprocess.run([str(find_envoy(None)), "--mode", "validate", "-c", str(config)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Deprecated" not in done.stderr, done.stderr


@pytest.mark.parametrize("hosts", [["10.0.0.7", "::1"], ["bistream"]])
def test_envoy_takes_the_configuration_with_addresses_or_names_and_with_tls(hosts: list[str], tmp_path: Path) -> None:
    certificate, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    words = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj", "/CN=bistream")
    subprocess.run(["openssl", *words, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    tls = TlsSettings(certificate, key, client_ca=certificate if "bistream" in hosts else None)
    servers = [HERE, *(ServerAddress(host, 8001, 8000, 8003) for host in hosts)]
    validate(envoy_config(ProxySettings("0.0.0.0", 8001, "0.0.0.0", 8000, 9901, tls), servers), tmp_path)


def await_open(number: int) -> None:
    wait_for(lambda: is_open(LOOPBACK, number), f"port {number} to be open")


class Server:
    """It answers every start with audio at once, and says at its health port whether it is ready."""

    def __init__(self, stack: ExitStack) -> None:
        self.is_ready = True
        grpc_port = port()
        self.process = subprocess.Popen([sys.executable, "benchmarks/_gateway_stub.py", str(grpc_port)], cwd=ROOT)
        stack.callback(self.process.wait)
        stack.callback(self.process.kill)
        self.asked = 0
        health = stack.enter_context(HealthServer(LOOPBACK, 0, self._answer))
        self.address = ServerAddress(LOOPBACK, grpc_port, health.port, health.port)

    def _answer(self) -> bool:
        self.asked += 1
        return self.is_ready


class House:
    """Two servers behind Envoy."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self.servers = [Server(stack) for _ in range(2)]
        for server in self.servers:
            await_open(server.address.grpc_port)
        grpc_port, http_port, admin_port = ports(3)
        settings = ProxySettings(LOOPBACK, grpc_port, LOOPBACK, http_port, admin_port)
        config = folder / "envoy.yaml"
        config.write_text(envoy_config(settings, [server.address for server in self.servers]), encoding="utf-8")
        words = [str(find_envoy(None)), "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
        process = subprocess.Popen(words)
        stack.callback(process.wait)
        stack.callback(process.kill)
        self.http_url, self.admin_url = (f"http://{LOOPBACK}:{number}" for number in (http_port, admin_port))
        self.client = BistreamClient(f"{LOOPBACK}:{settings.grpc_port}", sends_hashes=False)
        await_open(settings.grpc_port)

    def begin(self) -> ClientSession:
        return self._stack.enter_context(self.client.start(speaker_id="anna"))

    def start(self) -> ClientSession:
        """A session that has heard audio."""
        session = self.begin()
        next(iter(session))
        return session

    def live(self) -> list[int]:
        """Sessions of each server."""
        with urllib.request.urlopen(f"{self.admin_url}/clusters") as page:
            lines = page.read().decode().splitlines()
        return [int(self._stat(lines, server, "rq_active")) for server in self.servers]

    def await_health(self, number: int, word: str) -> None:
        server = self.servers[number]

        def is_noted() -> bool:
            with urllib.request.urlopen(f"{self.admin_url}/clusters") as page:
                return self._stat(page.read().decode().splitlines(), server, "health_flags") == word

        wait_for(is_noted, f"Envoy to take server {number} for {word}")

    @staticmethod
    def _stat(lines: list[str], server: Server, name: str) -> str:
        (found,) = [line for line in lines if line.startswith(f"grpc::{LOOPBACK}:{server.address.grpc_port}::{name}::")]
        return found.rpartition("::")[2]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with ExitStack() as stack:
        yield House(stack, tmp_path)


def finish(session: ClientSession) -> None:
    session.end_text("The end.")
    list(session)
    session.close()


def test_sessions_drains_and_deaths(house: House) -> None:
    """One house for all: each part leaves what the next one needs."""
    sessions: list[ClientSession] = []
    while min(house.live()) < 3:  # the better of two drawn at random: each soon has some
        sessions.append(house.start())
        assert len(sessions) < 40
    with urllib.request.urlopen(f"{house.http_url}/v2/health/ready") as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(f"{house.http_url}/metrics")
    assert refusal.value.code == 404 and json.loads(refusal.value.read())["error"].startswith("NOT_SERVED: ")
    refusal.value.close()

    house.servers[0].is_ready = False  # it drains
    house.await_health(0, "/failed_active_hc")
    draining, other = house.live()
    sessions += [house.start() for _ in range(4)]
    assert house.live() == [draining, other + 4]
    for session in sessions:
        finish(session)  # on both servers

    house.servers[1].is_ready = False
    house.await_health(1, "/failed_active_hc")
    with pytest.raises(EngineError, match="^No server takes sessions at the moment; try again in a few seconds.$"):
        house.start()
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(f"{house.http_url}/v2/models/cosyvoice2/infer", data=b"{}")
    assert refusal.value.code == 503 and json.loads(refusal.value.read())["error"].startswith("ENGINE_ERROR: No server takes sessions")
    refusal.value.close()

    for number, server in enumerate(house.servers):
        server.is_ready = True
        house.await_health(number, "healthy")
    check_the_death_of_a_server(house)


def check_the_death_of_a_server(house: House) -> None:
    sessions: list[ClientSession] = []
    while min(house.live()) < 2:
        sessions.append(house.start())
        assert len(sessions) < 40
    on_second = house.live()[1]
    house.servers[1].process.send_signal(signal.SIGSTOP)
    unheard: list[ClientSession] = []
    while house.live()[1] < on_second + 2:  # on the server that answers no more, beside others
        unheard.append(house.begin())
        assert len(unheard) < 200
    house.servers[1].process.kill()
    for session in unheard:
        next(iter(session))  # begun again on the other server
    for _ in range(4):
        finish(house.start())  # whether Envoy has noticed or not
    lost = 0
    for session in sessions:
        try:
            finish(session)
        except ConnectionError as error:
            assert str(error) == f"The server that spoke this session was lost behind {house.client.address}; start the session again."
            lost += 1
    assert lost == on_second
