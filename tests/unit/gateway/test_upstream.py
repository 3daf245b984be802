"""The watch on the server: a silent one, one that comes back, and what its words become."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bistream.errors import EngineError
from gateway.settings import UpstreamSettings
from gateway.upstream import Upstream, UpstreamLost, public_error
from tests.ports import port
from tests.unit.client.fake_server import Speakers
from tests.unit.gateway.fakes import run
from tests.unit.gateway.rig import TIMEOUT_S, FakeTriton


def watched(address: str, test: Callable[[Upstream], Awaitable[None]]) -> None:
    """Run ``test`` beside the watch."""

    async def beside() -> None:
        upstream = Upstream(UpstreamSettings(address, poll_interval_s=0.01, poll_timeout_s=TIMEOUT_S))
        watch = asyncio.create_task(upstream.watch())
        try:
            await test(upstream)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await upstream.close()

    run(beside)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_a_server_that_accepts_and_never_answers_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gateway")

    async def test() -> None:
        connections: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda reader, writer: connections.append(writer), "127.0.0.1", 0)
        address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        told: list[int] = []
        upstream = Upstream(UpstreamSettings(address, poll_interval_s=0.01, poll_timeout_s=0.05, max_silence_s=0.2))
        upstream.on_silence = lambda: told.append(1)
        watch = asyncio.create_task(upstream.watch())
        await until(lambda: bool(told))
        assert not upstream.is_ready
        upstream.on_silence = lambda: pytest.fail("told twice")
        for _ in range(20):
            await asyncio.sleep(0.01)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await upstream.close()
        silent.close()
        for writer in connections:
            writer.close()
        await asyncio.sleep(0.01)

    run(test)
    (said,) = [record for record in caplog.records if "has not answered" in record.message]
    assert said.levelname == "INFO" and "may be starting" in said.message


def test_a_server_that_dies_is_noticed_and_calls_fail() -> None:
    server = FakeTriton(Speakers())

    async def test(upstream: Upstream) -> None:
        await until(lambda: upstream.is_ready)
        stream = upstream.open_stream()
        await asyncio.to_thread(server.stop)
        with pytest.raises(UpstreamLost):
            await stream.receive(lambda data: None)
        await until(lambda: not upstream.is_ready)
        with pytest.raises(UpstreamLost):
            await upstream.open_stream().receive(lambda data: None)
        with pytest.raises(EngineError, match="cannot be reached"):
            await upstream.infer(b"")

    watched(server.address, test)


def test_a_server_that_comes_later_is_found() -> None:
    async def test() -> None:
        number = port()
        upstream = Upstream(UpstreamSettings(f"127.0.0.1:{number}", poll_interval_s=0.01, poll_timeout_s=TIMEOUT_S))
        failures: list[Exception] = []
        ask = upstream._ask_ready

        async def note() -> bool:
            try:
                return await ask()
            except Exception as failure:
                failures.append(failure)
                raise

        upstream._ask_ready = note  # type: ignore[method-assign]
        watch = asyncio.create_task(upstream.watch())
        await until(lambda: len(failures) > 2)
        assert not upstream.is_ready
        server = await asyncio.to_thread(FakeTriton, Speakers(), number)
        await until(lambda: upstream.is_ready)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await upstream.close()
        await asyncio.to_thread(server.stop)

    run(test)


def test_only_the_servers_own_codes_are_told() -> None:
    known = public_error("BUSY: All 3 sessions are taken; try again later. [session x]")
    assert (known.code, known.session_id) == ("BUSY", "x")
    for words in ("", "in /srv/model.py(40): execute", "NONSENSE: what", "Stub process is not healthy."):
        unknown = public_error(words)
        assert isinstance(unknown, EngineError) and "/srv" not in unknown.sentence


def test_a_server_that_is_held_takes_no_sessions(tmp_path: Path) -> None:
    server, hold = FakeTriton(Speakers()), tmp_path / "hold"
    hold.touch()

    async def test() -> None:
        upstream = Upstream(UpstreamSettings(server.address, poll_interval_s=0.01, poll_timeout_s=TIMEOUT_S, hold_file=hold))
        asked: list[bool] = []
        ask = upstream._ask_ready

        async def note() -> bool:
            asked.append(await ask())
            return asked[-1]

        upstream._ask_ready = note  # type: ignore[method-assign]
        watch = asyncio.create_task(upstream.watch())
        await until(lambda: len(asked) > 2)
        assert not any(asked) and not upstream.is_ready
        hold.unlink()
        await until(lambda: upstream.is_ready)
        hold.touch()
        await until(lambda: not upstream.is_ready)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await upstream.close()

    run(test)
    server.stop()
