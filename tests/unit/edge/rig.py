"""Envoy with our configuration before a server that plays the gate, callers that measure how they are served, and attackers beside them."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from bistream.keeper.envoy_config import TEMPLATE, ProxySettings, ServerAddress, envoy_config
from bistream.keeper.health import HealthServer
from gateway.settings import TlsSettings
from scripts.serve_gpus import find_envoy, is_open
from tests.ports import ports
from tests.triton.conftest import wait_for
from tests.unit.edge.http2 import Connection

ROOT = Path(__file__).resolve().parents[3]
LOOPBACK = "127.0.0.1"
CALLERS, NEWCOMERS = "127.0.0.9", "127.0.0.10"
NEW = "new session"
PIECE = b"text, " * 10
PAUSE_S = 0.02
SESSIONS = 5
PATIENCE_S = 60.0  # for an answer under attack; decides nothing else


@dataclass
class Served:
    """waits_s: of every answer to a live session. starts_s: of every new session, on a connection of its own. refused: those without."""

    waits_s: list[float] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class Door(BaseHTTPRequestHandler):
    """Says the path and the address that it was told."""

    def do_GET(self) -> None:
        body = json.dumps([self.path, self.headers.get_all("x-client-address")]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


def template(**changes: str) -> str:
    """Ours, with other values of some fields."""
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, value in changes.items():
        text, count = re.subn(rf"\b{re.escape(name)}: [\w.]+", f"{name}: {value}", text)
        assert count, name
    return text


class Edge:
    """A context."""

    def __init__(self, folder: Path, tls: TlsSettings | None = None, **changes: str) -> None:
        self._stack = ExitStack()
        self._folder = folder
        self._tls = tls
        self._template = template(**{"drain_timeout": "0.1s"} | changes)
        self.grpc_port, self.http_port, self.admin_port, self.http_inner, self.gate_port = ports(5)

    def __enter__(self) -> Self:
        self.gate = self._open([sys.executable, "-m", "tests.unit.edge.gate", str(self.gate_port)])
        health = self._stack.enter_context(HealthServer(LOOPBACK, 0, lambda: True))
        door = ThreadingHTTPServer((LOOPBACK, self.http_inner), Door)
        threading.Thread(target=door.serve_forever, args=(PAUSE_S,), daemon=True).start()
        self._stack.callback(door.server_close)
        self._stack.callback(door.shutdown)
        settings = ProxySettings(LOOPBACK, self.grpc_port, LOOPBACK, self.http_port, self.admin_port, self._tls)
        servers = [ServerAddress(LOOPBACK, self.gate_port, self.http_inner, health.port)]
        config = self._folder / "envoy.yaml"
        config.write_text(envoy_config(settings, servers, self._template), encoding="utf-8")
        words = ["-c", str(config), "--concurrency", "2", "--disable-hot-restart", "--log-level", "error"]
        self.envoy = self._open([str(find_envoy(None)), *words])
        wait_for(lambda: is_open(LOOPBACK, self.gate_port) and is_open(LOOPBACK, self.grpc_port), "Envoy and the gate to be open")
        wait_for(lambda: self.stat("cluster.grpc.membership_healthy") == 1, "Envoy to know that the server is ready")
        return self

    def _open(self, words: list[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(words, cwd=ROOT)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def stat(self, name: str) -> int:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self.admin_port}/stats?filter={name}") as page:
            lines = page.read().decode().splitlines()
        return sum(int(line.rpartition(" ")[2]) for line in lines if line.rpartition(": ")[0].endswith(name))

    @property
    def memory_mib(self) -> float:
        status = Path(f"/proc/{self.envoy.pid}/status").read_text(encoding="ascii")
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.envoy.pid}/fd").iterdir()))

    def under(self, *attacks: Sequence[str]) -> Served:
        """Sessions that run, and new ones, while commands of attackers are at work."""
        return asyncio.run(self._under(attacks))

    def attack(self, seconds: float, *attacks: str) -> list[str]:
        """The command of attackers: kind and address of each."""
        return [sys.executable, "-m", "tests.unit.edge.attackers", str(self.grpc_port), str(seconds), *attacks]

    async def _under(self, attacks: Sequence[Sequence[str]]) -> Served:
        served, is_over = Served(), asyncio.Event()
        callers = [await Connection.open(self.grpc_port, CALLERS) for _ in range(SESSIONS)]
        async with asyncio.TaskGroup() as group:
            for caller in callers:
                group.create_task(self._talk(caller, served, is_over))
            group.create_task(self._come(served, is_over))
            processes = [await asyncio.create_subprocess_exec(*words, cwd=ROOT, stderr=asyncio.subprocess.PIPE) for words in attacks]
            for process in processes:
                _, errors = await process.communicate()
                if process.returncode != 0:
                    served.refused.append(f"the attacker has failed: {errors.decode()}")
            is_over.set()
        for caller in callers:
            await caller.close()
        return served

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
                served.refused.append(f"{NEW}: {error}")
                continue
            stream = caller.begin()
            caller.say(stream, PIECE)
            if len(await asyncio.wait_for(caller.answers(stream, len(PIECE)), PATIENCE_S)) < len(PIECE):
                served.refused.append(f"{NEW}: {caller.ended.get(stream)}")
            served.starts_s.append(time.monotonic() - began)
            await caller.close()
            await asyncio.sleep(10 * PAUSE_S)
