"""A session's stream to Triton: whole messages in their order and a quiet end, even when clients disconnect.

Several clients of one API key write to the session. The test plays Triton, and gives room as it likes.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation import Conversation
from gateway.keys import Keys
from gateway.messages import read_request
from gateway.requests import FrontModelRequest
from gateway.session_stream import CANCEL, CLOSE_TIMEOUT_S, QUIET_S
from gateway.settings import GateLimits
from tests.unit.gateway.fakes import FakeStream, House, answers, run_moved, settle, told, wait
from tests.unit.gateway.requests import append, cancel, message, start
from tests.unit.gateway.requests import request as request_of

KEY = "k" * 16
PLENTY = 10_000_000
RECORDING = [0.0] * 50_000  # 200 KB
run_coroutine = run_moved


class Scene:
    """A gate with API keys before a Triton that the test plays. room: of each stream, in bytes."""

    def __init__(self, room: int = PLENTY, limits: GateLimits | None = None) -> None:
        self.house = House(limits, Keys({KEY: "anna"}))
        self.house.upstream.make = partial(FakeStream, room, ends_itself=False)

    def client(self) -> Conversation:
        return self.house.client(key=KEY)

    @property
    def stream(self) -> FakeStream:
        return self.house.last

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.stream.sent]


def with_recording(**values: Any) -> FrontModelRequest:
    return read_request(message(target_text="y", is_end=False, reference_wav=RECORDING, **values), GateLimits())


async def vanish(client: Conversation, *tasks: asyncio.Task[None]) -> None:
    """As the door does it: what reads for the client is cancelled in the midst of its waiting."""
    for task in tasks:
        task.cancel()
    client.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    await settle()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(0, 3_000)),
        st.tuples(st.just("cancel"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("vanish"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("room"), st.just(0), st.integers(1, 4_000)),
        st.tuples(st.just("wait"), st.just(0), st.integers(0, 2)),
    ),
    max_size=25,
)


@given(STEPS, st.booleans(), st.integers(1, 3_000))
def test_triton_reads_whole_messages_in_their_order_whoever_vanishes(steps: list[tuple[str, int, int]], leaves: bool, room: int) -> None:
    """The last room is ample: then everything has come, and where the home has left, the cancel after it and the proper end."""

    async def test() -> None:
        scene = Scene(room=1_000)
        clients = [scene.client() for _ in range(4)]
        tasks: list[list[asyncio.Task[None]]] = [[] for _ in clients]
        sent = ["hello"]
        tasks[0].append(asyncio.create_task(clients[0].send(start("mine", sent[0]))))
        await settle()
        scene.stream.give_room(room)
        for kind, who, size in steps:
            if kind == "vanish":
                await vanish(clients[who], *tasks[who])
                clients[who], tasks[who] = scene.client(), []
            elif kind == "room":
                scene.stream.give_room(size)
            elif kind == "append":
                sent.append(f"{len(sent)} " + "x" * size)
                tasks[who].append(asyncio.create_task(clients[who].send(append("mine", sent[-1]))))
            elif kind == "cancel":
                sent.append("")
                tasks[who].append(asyncio.create_task(clients[who].send(cancel("mine"))))
            await settle(size if kind == "wait" else 12)
        if leaves:
            await vanish(clients[0], *tasks[0])
        stream = scene.stream
        stream.give_room(PLENTY)
        await settle(60)
        texts = [b"" if one.id == CANCEL else text_of(one) for one in stream.sent]
        asked = scene.ids[len(sent) :]
        assert texts[: len(sent)] == [text.encode() for text in sent] and not stream.is_cancelled
        assert stream.is_finished == leaves and asked == ([CANCEL] if leaves else [])
        for client, own in zip(clients, tasks, strict=True):
            await vanish(client, *own)
        stream.lose()
        await settle()
        assert scene.house.gate.admission.sessions == 0 and scene.house.gate.output_budget.used == 0

    run_moved(test())


def text_of(one: Any) -> bytes:
    tensors = {tensor.name: raw for tensor, raw in zip(one.inputs, one.raw_input_contents, strict=True)}
    return bytes(tensors.get("target_text", b"\0" * 4)[4:])


async def test_a_later_request_has_no_recording() -> None:
    """So only a start is large; the models refuse it too."""
    scene = Scene()
    client = scene.client()
    await client.send(start("mine", "x"))
    await client.send(with_recording(session_id="mine", is_start=False))
    await client.send(read_request(message(session_id="mine", is_start=False, is_end=False, source_wav=RECORDING), GateLimits()))
    refused = await answers(client, 4)
    assert [told(one)[1] for one in refused] == ["INVALID_INPUT", "final"] * 2
    await client.send(read_request(message(session_id="mine", is_cancel=True, reference_wav=RECORDING), GateLimits()))
    assert scene.ids == ["0", "1"]
    assert set(scene.stream.tensors()) == {"is_cancel", "session_id"}
    await vanish(client)
    scene.stream.lose()


@pytest.mark.parametrize("model", ["cosyvoice2_bistream", "cosyvoice2"])
async def test_a_start_that_was_not_begun_to_be_sent_is_taken_back_at_once(model: str) -> None:
    scene = Scene()
    client = scene.client()
    values: dict[str, Any] = {"session_id": "mine", "is_end": False} if model == "cosyvoice2_bistream" else {}
    task = asyncio.create_task(client.send(read_request(message(model, target_text="y", reference_wav=RECORDING, **values), GateLimits())))
    await asyncio.sleep(0)
    assert len(scene.house.gate.sessions) == 1 and not scene.stream.is_writing
    await vanish(client, task)
    assert scene.stream.is_cancelled and not scene.stream.sent


async def test_a_session_that_fails_in_the_midst_of_a_request_ends_after_it() -> None:
    scene = Scene(room=1_000, limits=GateLimits(max_unread_audio_s=1))
    client = scene.client()
    await client.send(start("mine", "x"))
    task = asyncio.create_task(client.send(append("mine", "y" * 2_000)))
    await settle()
    assert not task.done()
    for _ in range(2):
        scene.stream.audio(seconds=2)
    assert len(scene.house.gate.sessions) == 0 and not scene.stream.is_finished
    scene.stream.give_room(PLENTY)
    await settle()
    assert task.done()
    assert scene.ids == ["0", "1", CANCEL] and scene.stream.is_finished and not scene.stream.is_cancelled
    client.close()
    scene.stream.lose()


async def test_where_the_model_knows_no_cancel_the_stream_is_reset_in_a_quiet_moment() -> None:
    scene = Scene()
    client = scene.client()
    await client.send(request_of("cosyvoice2", target_text="x"))
    await vanish(client)
    assert scene.ids == ["0"] and not scene.stream.is_cancelled, "it has just carried a request"
    assert len(scene.house.gate.sessions) == 0
    await wait(2 * QUIET_S, QUIET_S / 4)
    assert scene.stream.is_cancelled and not scene.stream.is_finished


def test_a_stream_that_does_not_end_is_reset_after_a_stop_that_sessions_survive() -> None:
    async def test() -> None:
        scene = Scene()
        client = scene.client()
        await client.send(start("mine", "x"))
        await vanish(client)
        await wait(CLOSE_TIMEOUT_S - 1)
        assert scene.stream.is_finished and not scene.stream.is_cancelled
        await wait(2.0)
        assert scene.stream.is_cancelled

    run_moved(test())


async def test_at_the_end_triton_has_time_to_answer_the_cancels() -> None:
    scene = Scene()
    client = scene.client()
    await client.send(start("mine", "x"))
    closing = asyncio.create_task(scene.house.gate.close())
    await settle()
    assert scene.ids == ["0", CANCEL] and scene.stream.is_finished and not closing.done()
    scene.stream._end(True)
    await settle()
    assert closing.done()


async def test_at_the_end_a_silent_triton_is_not_waited_for() -> None:
    scene = Scene()
    client = scene.client()
    await client.send(start("mine", "x"))
    closing = asyncio.create_task(scene.house.gate.close())
    await settle()
    await wait(3.0, 0.25)
    assert closing.done() and scene.stream.is_cancelled
