"""Several servers: chosen by what their keepers say, left out when they are gone, and taken back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import BusyError
from interfaces.core.caller import Caller
from interfaces.core.load import UNKNOWN_CAPACITY, ServerLoad, parse_load
from interfaces.core.servers import Servers
from interfaces.core.service import SpeechService
from interfaces.core.voices import VoiceStore
from interfaces.settings import InterfaceLimits
from tests.unit.client.fake_server import Reader
from tests.unit.interfaces.rig import ANNA, ReadyServer, reading

PAGE = """# TYPE bistream_sessions gauge
bistream_sessions{{state="active"}} {sessions}
bistream_sessions{{state="starting"}} 1
bistream_load {load}
bistream_capacity_audio_s_per_s {capacity}
bistream_server_ready {ready}
bistream_sessions_ended_total{{reason="eos"}} 7777
"""
WAIT_S = 120.0


class Keeper:
    """The health port of a server."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {"sessions": 9, "load": 0.2, "capacity": 100, "ready": 1}
        self.status = 200
        keeper = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = PAGE.format(**keeper.values).encode() if self.path == "/metrics" else b""
                self.send_response(keeper.status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])


@contextlib.contextmanager
def keepers(count: int) -> Iterator[list[Keeper]]:
    made = [Keeper() for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            one.server.shutdown()
            one.server.server_close()


@contextlib.asynccontextmanager
async def closing(servers: Servers):  # type: ignore[no-untyped-def]  # an async generator
    try:
        yield servers
    finally:
        await servers.close()


def test_a_page_of_a_keeper_is_read() -> None:
    load = parse_load(PAGE.format(sessions=9, load=0.2, capacity=100, ready=1), own_sessions=3)
    assert load == ServerLoad(10, 0.2, 100, True, 3)
    assert load.expected(3) == pytest.approx(0.2) and load.expected(5) == pytest.approx(0.22) and load.expected(0) == pytest.approx(0.17)
    young = parse_load(PAGE.format(sessions=74, load=0, capacity=0, ready=0), own_sessions=0)
    assert young == ServerLoad(75, 0, UNKNOWN_CAPACITY, False, 0) and young.expected(0) == pytest.approx(0.1)


@given(st.text() | st.lists(st.sampled_from(["bistream_load", '{a="b"}', " ", "nan", "-1", "inf", "1e400", "\n", "0.5"])).map("".join))
def test_no_page_breaks_it(page: str) -> None:
    load = parse_load(page, 0)
    assert load is None or 0 <= load.expected(0) < float("inf")


def test_the_server_with_the_lowest_load_is_taken_whoever_uses_it() -> None:
    async def choose() -> None:
        async with closing(Servers([f"{one.address}/{keeper.port}" for one, keeper in zip((a, b), health, strict=True)])) as servers:
            await servers.check()
            first, second = servers.all
            health[0].values["load"] = 0.5
            await servers.check()
            assert servers.choose() is second
            second.open_sessions += 40  # 0.2 + 40 sessions of 100: ours count before the next page is read
            assert servers.choose() is first
            health[1].values.update(load=0.6)
            await servers.check()
            assert servers.choose() is first
            health[0].values["ready"] = 0  # its keeper drains it
            await servers.check()
            assert servers.choose() is second
            health[0].status = 500  # no load is known, and the server itself says that it is ready
            await servers.check()
            assert first.load is None and servers.choose() is first

    with reading() as a, reading() as b, keepers(2) as health:
        asyncio.run(choose())


async def test_a_server_that_was_full_is_asked_last_until_its_time() -> None:
    now = [100.0]
    servers = Servers(["a:1", "b:1"], now=lambda: now[0])
    first, second = servers.all
    error = BusyError("All 4 sessions are taken; try again in 2.0 s.", retry_after_s=2.0)
    servers.refused(first, error)
    assert servers.choose() is second and servers.choose([second]) is first
    now[0] += 5.0
    assert servers.choose() is first


def test_a_name_stands_for_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ["127.0.0.2", "127.0.0.3"]

    async def look_up(host: str, port: int, **_: object) -> list[object]:
        if host != "servers":
            raise OSError("not found")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in known]

    async def live() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up, raising=False)
        async with closing(Servers(["servers:1/2", "gone:1"])) as servers:
            await servers._look_up()
            assert [one.name for one in servers.all] == ["127.0.0.2:1/2", "127.0.0.3:1/2", "gone:1"]
            busy = servers.all[1]
            busy.open_sessions = 1
            known[1:] = ["127.0.0.4", "127.0.0.5"]
            kept = servers.all[0]
            await servers._look_up()
            assert servers.all[0] is kept and [one.address for one in servers.all[1:3]] == ["127.0.0.4:1", "127.0.0.5:1"]
            assert servers._leaving == [busy]  # its session goes on
            busy.open_sessions = 0
            known.clear()
            known.append("127.0.0.2")
            await servers._look_up()
            assert [one.name for one in servers.all] == ["servers:1/2", "gone:1"] and not servers._leaving

    asyncio.run(live())


def test_a_dead_server_is_left_out_and_taken_again() -> None:
    async def speak(service: SpeechService) -> None:
        speech = service.open("anna", Caller(None, "10.0.0.1"))
        await speech.end("Hello")
        assert [part async for part in speech]
        await speech.close()

    async def live() -> None:
        dying = ReadyServer(Reader())
        port = int(dying.address.rpartition(":")[2])
        async with closing(Servers([dying.address, other.address])) as servers:
            service = SpeechService(servers, VoiceStore((ANNA,)), InterfaceLimits())
            await servers.check()
            assert [one.is_ready for one in servers.all] == [True, True]
            await speak(service)
            assert len(dying.received) == 1
            await asyncio.to_thread(dying.stop)
            await speak(service)  # whether it knows yet or not
            assert len(other.received) == 1
            await servers.check()
            assert [one.is_ready for one in servers.all] == [False, True] and service.is_ready()
            again = ReadyServer(Reader(), port)
            try:
                while not servers.all[0].is_ready:  # the next attempt to connect is near
                    await servers.check()
                    await asyncio.sleep(0.05)
                assert servers.choose() is servers.all[0]
                await speak(service)
                assert len(again.received) == 1
            finally:
                await asyncio.to_thread(again.stop)

    with reading() as other:
        asyncio.run(asyncio.wait_for(live(), WAIT_S))
