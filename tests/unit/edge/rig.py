"""Envoy with our configuration before a server that plays the gate, callers that measure how they are served, and attackers beside them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from bistream.keeper.envoy_config import ProxySettings, ProxyTls, ServerAddress, envoy_config
from bistream.keeper.health import HealthServer
from scripts.serve_gpus import find_envoy, is_open
from tests.ports import ports
from tests.triton.conftest import wait_for
from tests.unit.edge.http2 import Connection

ROOT = Path(__file__).resolve().parents[3]
LOOPBACK = "127.0.0.1"
CALLERS, NEWCOMERS, ATTACKER = "127.0.0.9", "127.0.0.10", "127.0.0.2"
PIECE = b"text, " * 10
PAUSE_S = 0.02
PATIENCE_S = 60.0  # for an answer under attack; decides nothing else


@dataclass
class Served:
    """waits_s: of every answer to a live session. starts_s: of every new session, on a connection of its own. refused: those without."""

    waits_s: list[float] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    attacks: list[str] = field(default_factory=list)


class Edge:
    """A context. template: of another configuration. server: false where the test has one of its own at ``grpc_inner``, ``http_inner``."""

    def __init__(self, folder: Path, tls: ProxyTls | None = None, template: str | None = None, gates: int = 1) -> None:
        self._stack = ExitStack()
        self._folder = folder
        self._tls = tls
        self._template = template
        self.grpc_port, self.http_port, self.admin_port, self.http_inner, *self.gate_ports = ports(4 + gates)

    def __enter__(self) -> Self:
        self.gates = [self._open([sys.executable, "-m", "tests.unit.edge.gate", str(port)]) for port in self.gate_ports]
        health = self._stack.enter_context(HealthServer(LOOPBACK, 0, lambda: True))
        settings = ProxySettings(LOOPBACK, self.grpc_port, LOOPBACK, self.http_port, self.admin_port, self._tls)
        servers = [ServerAddress(LOOPBACK, port, self.http_inner, health.port) for port in self.gate_ports]
        config = self._folder / "envoy.yaml"
        config.write_text(envoy_config(settings, servers, self._template), encoding="utf-8")
        words = ["-c", str(config), "--concurrency", "2", "--disable-hot-restart", "--log-level", "error"]
        self.envoy = self._open([str(find_envoy(None)), *words])
        for port in (*self.gate_ports, self.grpc_port):
            wait_for(lambda port=port: is_open(LOOPBACK, port), f"port {port} to be open")  # type: ignore[misc]
        return self

    def _open(self, words: list[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(words, cwd=ROOT)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def stat(self, name: str) -> int:
        return stat(self.admin_port, name)

    @property
    def memory_mib(self) -> float:
        status = Path(f"/proc/{self.envoy.pid}/status").read_text(encoding="ascii")
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.envoy.pid}/fd").iterdir()))

    def under(self, *attacks: tuple[str, str, float], sessions: int = 5, port: int | None = None) -> Served:
        """Sessions that run, and new ones, while attackers (kind, address, seconds) are at work."""
        return asyncio.run(self._under(attacks, sessions, port or self.grpc_port))

    async def _under(self, attacks: tuple[tuple[str, str, float], ...], sessions: int, port: int) -> Served:
        served, is_over = Served(), asyncio.Event()
        callers = [await Connection.open(self.grpc_port, CALLERS) for _ in range(sessions)]
        async with asyncio.TaskGroup() as group:
            for caller in callers:
                group.create_task(self._talk(caller, served, is_over))
            group.create_task(self._come(served, is_over))
            processes = [await self._attack(kind, port, address, seconds) for kind, address, seconds in attacks]
            for process in processes:
                output, _ = await process.communicate()
                served.attacks.append(output.decode().strip())
                assert process.returncode == 0
            is_over.set()
        for caller in callers:
            await caller.close()
        return served

    async def _attack(self, kind: str, port: int, address: str, seconds: float) -> asyncio.subprocess.Process:
        words = ("-m", "tests.unit.edge.attackers", kind, str(port), address, str(seconds))
        return await asyncio.create_subprocess_exec(sys.executable, *words, cwd=ROOT, stdout=asyncio.subprocess.PIPE)

    async def _talk(self, caller: Connection, served: Served, is_over: asyncio.Event) -> None:
        stream, heard = caller.begin(), 0
        while not is_over.is_set():
            began = time.monotonic()
            caller.say(stream, PIECE)
            heard += len(PIECE) + 5
            if len(await asyncio.wait_for(caller.answers(stream, heard), PATIENCE_S)) < heard:
                served.refused.append(f"live session: {caller.ended.get(stream)}")
                return
            served.waits_s.append(time.monotonic() - began)
            await asyncio.sleep(PAUSE_S)

    async def _come(self, served: Served, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            began = time.monotonic()
            try:
                caller = await asyncio.wait_for(Connection.open(self.grpc_port, NEWCOMERS), PATIENCE_S)
            except OSError as error:
                served.refused.append(f"new session: {error}")
                continue
            stream = caller.begin()
            caller.say(stream, PIECE)
            if len(await asyncio.wait_for(caller.answers(stream, len(PIECE)), PATIENCE_S)) < len(PIECE):
                served.refused.append(f"new session: {caller.ended.get(stream)}")
            served.starts_s.append(time.monotonic() - began)
            await caller.close()
            await asyncio.sleep(10 * PAUSE_S)


def stat(admin_port: int, name: str) -> int:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{admin_port}/stats?usedonly&filter={name}") as page:
        lines = page.read().decode().splitlines()
    return sum(int(line.rpartition(" ")[2]) for line in lines if line.rpartition(": ")[0].endswith(name))
