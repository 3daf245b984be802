"""Both ends of a channel over a socket: order, portions of any size, errors, and models and front models that go."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.contract.codec import CallInputs, Inputs, Values
from bistream.contract.fields import TOKEN2WAV
from bistream.errors import BusyError, EngineError, InvalidInputError, UnknownSessionError
from bistream.processes.control_files import CONTROL_VARIABLE
from bistream.transport import channel_end
from bistream.transport.call_sockets import MAX_ENVELOPE_BYTES, Frames, frame, socket_path
from bistream.transport.channel import CallChannel
from bistream.transport.channel_end import ChannelEnds
from bistream.transport.envelope import Message
from bistream.transport.sender import Answerer

WAIT_S = 120.0


def call(number: int) -> Values:
    return {"seed": number}


def echo(inputs: Inputs, sender: Answerer) -> None:
    assert isinstance(inputs, CallInputs)
    sender.send(inputs._values, is_last=True)


class Model:
    """The model's end. handle: what answers a call."""

    def __init__(self, path: Path, handle: Callable[[Inputs, Answerer], None] = echo) -> None:
        self.outbox = ThreadPoolExecutor(1)
        self.ends = ChannelEnds(path, TOKEN2WAV, handle, self.outbox)

    def close(self) -> None:
        self.ends.close()
        self.outbox.shutdown()

    @property
    def connections(self) -> int:
        return len(self.ends._connections)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "token2wav.calls"


@pytest.fixture
def model(path: Path) -> Iterator[Model]:
    model = Model(path)
    yield model
    model.close()
    assert not path.exists() and not model.ends._thread.is_alive()


async def ask_all(channel: CallChannel, calls: list[Values]) -> list[Any]:
    return await asyncio.gather(*(channel.ask(one) for one in calls), return_exceptions=True)


def ask(path: Path, *calls: Values) -> list[Any]:
    """On a channel of its own."""

    async def session() -> list[Any]:
        channel = CallChannel(path, "token2wav")
        try:
            return await ask_all(channel, list(calls))
        finally:
            channel.close()

    return asyncio.run(session())


def test_every_call_gets_its_own_answer_and_calls_arrive_in_order(path: Path) -> None:
    arrived: list[int] = []

    def handle(inputs: Inputs, sender: Answerer) -> None:
        arrived.append(inputs.value("seed") or 0)
        echo(inputs, sender)

    model = Model(path, handle)
    answers = ask(path, *(call(number) for number in range(500)))
    model.close()
    assert [answer["seed"] for answer in answers] == list(range(500)) == arrived


def test_calls_and_answers_larger_than_the_kernels_buffers_arrive_whole(path: Path, model: Model) -> None:
    large = [{"prompt_speech_feat": np.full((20_000, 80), number, np.float32)} for number in range(4)]
    for number, answer in enumerate(ask(path, *large)):
        assert answer["prompt_speech_feat"].shape == (20_000, 80) and (answer["prompt_speech_feat"] == number).all()


def test_a_model_that_goes_fails_each_call_and_a_later_call_reaches_the_next_one(path: Path) -> None:
    asked = threading.Event()

    def keep(inputs: Inputs, sender: Answerer) -> None:
        if not inputs.value("seed"):
            asked.set()

    silent = Model(path, keep)

    async def session() -> tuple[list[Any], Any]:
        channel = CallChannel(path, "token2wav")
        answers = asyncio.ensure_future(ask_all(channel, [call(1), call(2), call(0)]))
        await asyncio.get_running_loop().run_in_executor(None, asked.wait, WAIT_S)
        await asyncio.get_running_loop().run_in_executor(None, silent.close)
        failed = await answers
        nobody = (await ask_all(channel, [call(4)]))[0]
        another = Model(path)
        (found,) = await ask_all(channel, [call(5)])
        channel.close()
        another.close()
        return [*failed, nobody], found

    failed, found = asyncio.run(session())
    assert {type(one) for one in failed} == {EngineError} and len({id(one) for one in failed}) == 4
    assert all(str(path) not in one.sentence and "token2wav" not in one.sentence for one in failed)
    assert found["seed"] == 5


def test_a_model_that_goes_while_nobody_waits_is_no_error(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As at every end of a server."""
    caplog.set_level("INFO")
    model = Model(path)

    async def session() -> None:
        channel = CallChannel(path, "token2wav")
        await channel.ask(call(0))
        await asyncio.get_running_loop().run_in_executor(None, model.close)
        while channel._connection is not None:
            await asyncio.sleep(0)

    asyncio.run(session())
    assert [(one.levelname, one.getMessage()) for one in caplog.records if one.name.endswith("transport.channel")] == [
        ("INFO", "token2wav: it has closed its connection")
    ]


def test_calls_that_cannot_be_sent_leave_the_next_connection_alone(path: Path) -> None:
    """The model has closed a connection and listens on; several sessions call before that is read."""
    model = Model(path)

    async def session() -> tuple[list[Any], Any]:
        channel = CallChannel(path, "token2wav")
        await channel.ask(call(0))
        old = channel._connection
        assert old is not None
        old._loop.remove_reader(old._socket)
        old._socket.shutdown(socket.SHUT_RDWR)
        later = asyncio.Event()

        async def call_later() -> Any:
            await later.wait()
            return await channel.ask(call(3))

        third = asyncio.ensure_future(call_later())
        await asyncio.sleep(0)  # it waits now
        first = asyncio.ensure_future(channel.ask(call(1)))
        asyncio.get_running_loop().call_soon(later.set)  # so it goes on between what the first and the second failure bring about
        second = asyncio.ensure_future(channel.ask(call(2)))
        failed: list[Any] = list(await asyncio.gather(first, second, return_exceptions=True))
        found = (await asyncio.gather(third, return_exceptions=True))[0]
        channel.close()
        return failed, found

    failed, found = asyncio.run(session())
    model.close()
    assert [type(one) for one in failed] == [EngineError] * 2
    assert not isinstance(found, EngineError) and found["seed"] == 3


def test_a_front_model_that_goes_leaves_nothing_behind_and_others_go_on(path: Path) -> None:
    open_calls: list[Answerer] = []
    entered = threading.Event()

    def handle(inputs: Inputs, sender: Answerer) -> None:
        if inputs.value("seed"):
            echo(inputs, sender)
        else:
            open_calls.append(sender)
            entered.set()

    model = Model(path, handle)

    async def leave() -> None:
        channel = CallChannel(path, "token2wav")
        task = asyncio.ensure_future(channel.ask(call(0)))
        await asyncio.get_running_loop().run_in_executor(None, entered.wait, WAIT_S)
        channel.close()
        task.cancel()

    asyncio.run(leave())
    open_calls[0].send(call(0))  # to nobody
    assert ask(path, call(7))[0]["seed"] == 7
    for thread in threading.enumerate():
        if thread.name.startswith("bistream-calls"):
            thread.join(WAIT_S)
    assert model.connections == 0 and open_calls[0].is_cancelled(), "what it had asked for is given up"
    model.close()


def test_a_front_model_that_cannot_be_taken_does_not_keep_the_next_one_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a descriptor or a thread left at this moment, the model must go on listening, or later calls wait for ever."""
    monkeypatch.setattr(channel_end, "RETRY_S", 0.0)
    faults, accept = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))], socket.socket.accept

    def accept_later(listener: socket.socket) -> Any:
        if faults:
            raise faults.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    model = Model(path)
    assert ask(path, call(1))[0]["seed"] == 1
    begin = model.ends._begin

    def begin_later(*arguments: Any) -> threading.Thread:
        monkeypatch.setattr(model.ends, "_begin", begin)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(model.ends, "_begin", begin_later)
    assert isinstance(ask(path, call(2))[0], EngineError)
    assert ask(path, call(3))[0]["seed"] == 3
    model.close()
    assert not model.ends._thread.is_alive()


def test_an_error_is_that_of_its_call_alone_whether_it_is_answered_raised_or_cannot_be_packed(path: Path) -> None:
    def handle(inputs: Inputs, sender: Answerer) -> None:
        number = inputs.value("seed") or 0
        if number == 1:
            sender.finish(BusyError("Full.", "s"))
        elif number == 2:
            raise UnknownSessionError("Gone.", "s")
        elif number == 3:
            sender.send({"waveform": np.ones(2, np.complex64)}, is_last=True)
        else:
            echo(inputs, sender)

    model = Model(path, handle)
    answers = ask(path, *(call(number) for number in range(5)))
    model.close()
    assert [type(one) for one in answers] == [dict, BusyError, UnknownSessionError, EngineError, dict]
    assert [(one.sentence, one.session_id) for one in answers[1:3]] == [("Full.", "s"), ("Gone.", "s")]


def raw_answers(path: Path, count: int) -> bytes:
    """What the model writes until it has read that its caller has gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.connect(str(path))
        caller.sendall(frame([Message(number, call(number)) for number in range(count)]))
        frames, found, data = Frames(), 0, b""
        while found < count:
            data += (received := caller.recv(65536))
            found += len(frames.feed(received))
        caller.shutdown(socket.SHUT_WR)
        return data + caller.recv(65536)


def test_a_call_is_answered_once_whatever_is_called(path: Path) -> None:
    def handle(inputs: Inputs, sender: Answerer) -> None:
        echo(inputs, sender)
        sender.finish()
        sender.finish(BusyError("Late."))
        sender.send({}, is_last=True)

    model = Model(path, handle)
    assert [message.number for message in Frames().feed(raw_answers(path, 3))] == [0, 1, 2]
    model.close()


def test_answers_leave_in_bounded_portions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_end, "MAX_ANSWER_BYTES", 100)
    model = Model(path, lambda inputs, sender: sender.send({"waveform": np.zeros(20, np.float32)}, is_last=True))
    one = len(frame([Message(0, {"waveform": np.zeros(20, np.float32)})]))
    assert len(raw_answers(path, 5)) == 5 * one
    model.close()


def test_without_a_keeper_the_sockets_are_of_one_server_and_of_its_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(CONTROL_VARIABLE, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path, other = socket_path("token2wav"), socket_path("llm_bistream")
    assert path == socket_path("token2wav") != other and str(os.getppid()) in path.name
    model = Model(path)
    assert path.stat().st_mode & 0o077 == 0 and ask(path, call(1))[0]["seed"] == 1
    model.close()


@pytest.mark.parametrize("damage", [(MAX_ENVELOPE_BYTES + 1).to_bytes(8, "little"), (64).to_bytes(8, "little") + bytes([255]) * 64])
def test_what_is_no_envelope_ends_its_connection_alone(path: Path, model: Model, damage: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(str(path))
        stranger.sendall(damage)
        stranger.settimeout(WAIT_S)
        assert stranger.recv(1) == b""
    assert ask(path, call(3))[0]["seed"] == 3


@given(st.lists(st.integers(0, 300), max_size=6), st.lists(st.integers(1, 3_000), min_size=1, max_size=8))
def test_messages_arrive_whatever_the_portions(sizes: list[int], portions: list[int]) -> None:
    sent = [Message(number, {"seed": np.arange(size, dtype=np.int64)}) for number, size in enumerate(sizes)]
    stream, frames, found = b"".join(frame([message]) for message in sent), Frames(), []
    for portion in itertools.cycle(portions):
        found += frames.feed(stream[:portion])
        stream = stream[portion:]
        if not stream:
            break
    assert [message.number for message in found] == list(range(len(sizes)))
    assert [message.values["seed"].tolist() for message in found] == [list(range(size)) for size in sizes]


def test_an_envelope_that_is_too_long_is_refused_before_it_has_come() -> None:
    with pytest.raises(InvalidInputError):
        Frames().feed((MAX_ENVELOPE_BYTES + 1).to_bytes(8, "little"))
