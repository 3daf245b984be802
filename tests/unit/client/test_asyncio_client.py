"""What the client for event loops has of its own. What it shares with the threaded one: ``test_client.py``."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest

from bistream.client import channels
from bistream.client.asyncio_client import AsyncBistreamClient
from bistream.client.client import BistreamClient
from bistream.client.exchange import Chunk
from bistream.client.server_errors import SlowReaderError
from tests.unit.client.fake_server import Received, Serve, Speaker, Speakers, Stream

WAIT_S = 120.0
RECORDING = np.linspace(-1, 1, 16000, dtype=np.float32)


def test_it_sends_and_hears_what_the_threaded_client_does(serve: Serve) -> None:
    def threaded(address: str) -> list[Chunk]:
        with BistreamClient(address).start(reference_wav=RECORDING, reference_text="w", session_id="s", seed=5) as session:
            session.push_text("Hel", speed=1.5)
            session.end_text("lo")
            return list(session)

    async def asynchronous(address: str) -> list[Chunk]:
        client = AsyncBistreamClient(address)
        async with client.start(reference_wav=RECORDING, reference_text="w", session_id="s", seed=5) as session:
            await session.push_text("Hel", speed=1.5)
            await session.end_text("lo")
            return [chunk async for chunk in session]

    servers = [serve(Speaker()) for _ in range(2)]
    heard = [threaded(servers[0].address), asyncio.run(asynchronous(servers[1].address))]
    assert [chunk.text_consumed for chunk in heard[0]] == [chunk.text_consumed for chunk in heard[1]]
    for first, second in zip(*heard, strict=True):
        np.testing.assert_array_equal(first.waveform, second.waveform)
    sent = [[(one.id, one.model, sorted(one.inputs)) for one in server.received] for server in servers]
    assert sent[0] == sent[1]
    assert [["speed" in one.inputs for one in server.received] for server in servers] == [[False, True, False]] * 2
    assert servers[0].received[1].inputs["speed"].item() == servers[1].received[1].inputs["speed"].item() == 1.5
    assert [one.wants_empty_final for one in servers[1].received] == [True, False, False]  # only the end of the start says something


async def test_sessions_beyond_a_connections_streams_have_another_one_which_goes_with_them(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "CALLS_PER_CHANNEL", 2)
    client = AsyncBistreamClient(serve(Speakers()).address, keeps_channel=True)
    async with contextlib.AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(client.start(speaker_id="anna", text="a")) for _ in range(5)]
        for session in sessions:
            assert (await anext(aiter(session))).text_consumed == 1
        assert len(client.channels) == 3
    while len(client.channels) > 1:
        await asyncio.sleep(0.01)
    await client.close()


async def test_a_stream_whose_session_has_ended_is_closed_and_not_reset(serve: Serve) -> None:
    """Proxies take many resets for an attack."""
    client = AsyncBistreamClient(serve(Speakers()).address, keeps_channel=True)
    async with client.start(speaker_id="anna", text="Hi", is_end=True) as session:
        assert [chunk async for chunk in session]
        reader = session._reader
        assert reader is not None
    await asyncio.wait([reader])
    assert not reader.cancelled() and not session._call.cancelled()
    await client.close()


async def test_audio_that_is_not_read_is_bounded_where_the_program_says_so(serve: Serve) -> None:
    def flood(request: Received, stream: Stream) -> None:
        for number in range(10):
            stream.audio(request.id, np.zeros(24_000), number, 0)

    server = serve(flood)
    client = AsyncBistreamClient(server.address, max_unread_s=5.0)
    async with client.start(speaker_id="anna", text="Hi", is_end=True) as session:
        await asyncio.to_thread(server.stream_gone.wait, WAIT_S)
        with pytest.raises(SlowReaderError, match="5 s"):
            async for _ in session:
                pass
