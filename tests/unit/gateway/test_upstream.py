"""The watch on the server: one that dies, one that comes later, and what its words become."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bistream.errors import EngineError
from gateway.settings import UpstreamSettings
from gateway.upstream import Upstream, UpstreamLost, public_error
from tests.ports import port
from tests.unit.client.fake_server import Speakers
from tests.unit.gateway.rig import TIMEOUT_S, FakeTriton


@asynccontextmanager
async def watched(address: str, hold_file: Path | None = None) -> AsyncIterator[Upstream]:
    upstream = Upstream(UpstreamSettings(address, poll_interval_s=0.01, poll_timeout_s=TIMEOUT_S, hold_file=hold_file))
    watch = asyncio.create_task(upstream.watch())
    try:
        yield upstream
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await upstream.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def test_a_server_that_dies_is_noticed_and_calls_fail() -> None:
    server = FakeTriton(Speakers())
    async with watched(server.address) as upstream:
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


def test_only_the_servers_own_codes_are_told() -> None:
    known = public_error("BUSY: All 3 sessions are taken; try again later. [session x]")
    assert (known.code, known.session_id) == ("BUSY", "x")
    for words in ("", "in /srv/model.py(40): execute", "NONSENSE: what", "Stub process is not healthy."):
        unknown = public_error(words)
        assert isinstance(unknown, EngineError) and "/srv" not in unknown.sentence


async def test_a_server_that_comes_later_and_is_held_takes_no_sessions(tmp_path: Path) -> None:
    number, hold = port(), tmp_path / "hold"
    hold.touch()
    async with watched(f"127.0.0.1:{number}", hold_file=hold) as upstream:
        server = await asyncio.to_thread(FakeTriton, Speakers(), number)
        asked: list[bool] = []
        ask = upstream._ask_ready

        async def note() -> bool:
            asked.append(await ask())
            return asked[-1]

        upstream._ask_ready = note  # type: ignore[method-assign]
        await until(lambda: len(asked) > 2)
        assert not any(asked) and not upstream.is_ready
        hold.unlink()
        await until(lambda: upstream.is_ready)
        hold.touch()
        await until(lambda: not upstream.is_ready)
    await asyncio.to_thread(server.stop)
