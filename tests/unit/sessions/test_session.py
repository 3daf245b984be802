"""When a session is idle, that it frees what it owns, and that its reply is finished once."""

from __future__ import annotations

import asyncio

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.config import RuntimeConfig
from bistream.errors import UnknownSessionError
from bistream.sessions.request_checks import TextLedger, check_start
from bistream.sessions.session import CallerSession, Reply
from bistream.text.special_tokens import SPECIAL_TOKENS
from bistream.types import AudioChunk
from tests.unit.sessions.fakes import FakeSender, start_request


def make_session(text: bytes = b"Hello", is_end: bool = False) -> CallerSession:
    start = check_start(start_request(text, is_end=is_end), RuntimeConfig())
    ledger = TextLedger(100)
    ledger.accept(start.text, start.is_end)
    return CallerSession(start, ledger, "port-id", FakeSender(), now=0.0)


# Nothing of this can be spoken, wherever it is cut.
UNSPEAKABLE = ["", " \n\t", "...", "?!", "\u3002\uff1f", "--- * ---", "\U0001f600", "_", " [breath] ... <strong></strong> "]


@given(st.sampled_from([*UNSPEAKABLE, *SPECIAL_TOKENS]), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_nothing_said_keeps_no_session(text: str, cut: int) -> None:
    session, data = make_session(), text.encode()
    session.opened(0.0)
    session.add_text(data[:cut], False, 50.0)
    session.add_text(data[cut:], False, 59.0)
    assert session.is_idle(60.0, 60.0)
    session.add_text(b"a", False, 60.0)
    assert not session.is_idle(119.0, 60.0)
    assert session.is_idle(120.0, 60.0)


def test_idle_time_counts_from_the_last_words_and_only_while_receiving() -> None:
    session = make_session()
    assert not session.is_idle(1000.0, 30.0), "the voice may take its time"
    session.opened(1000.0)
    assert not session.is_idle(1029.0, 30.0)
    assert session.is_idle(1030.0, 30.0)
    session.add_text(b"so", False, 1030.0)
    assert not session.is_idle(1059.0, 30.0)
    session.speaking(True)
    assert not session.is_idle(2000.0, 30.0)


class Resource:
    def __init__(self, log: list[str], name: str, error: Exception | None = None) -> None:
        self.log, self.name, self.error = log, name, error

    async def free(self) -> None:
        self.log.append(self.name)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.log.append(f"{self.name} is free")


@given(st.lists(st.sampled_from(["fine", "refuses", "breaks"]), max_size=4), st.integers(1, 3))
@settings(max_examples=12, deadline=None)
def test_everything_is_freed_once_last_first_whatever_happens(kinds: list[str], times: int) -> None:
    errors = {"fine": None, "refuses": UnknownSessionError("gone"), "breaks": ValueError("bug")}
    session, log = make_session(), list[str]()
    for index, kind in enumerate(kinds):
        session.own(str(index), Resource(log, str(index), errors[kind]).free)
    session.own("freed itself", Resource(log, "never").free)
    session.disown("freed itself")

    async def free_all() -> None:
        await asyncio.gather(*(session.free() for _ in range(times)))

    asyncio.run(free_all())
    assert log[: len(kinds)] == [str(index) for index in reversed(range(len(kinds)))]
    assert log.count("never") == 0 and len(log) == len(kinds) + kinds.count("fine")
    assert not session.owns("0")


def test_a_reply_is_finished_once_and_left_alone_afterwards() -> None:
    sender = FakeSender()
    reply, chunk = Reply(sender), AudioChunk(np.zeros(1, np.float32), 0, 0)
    sender.gone = True
    assert reply.is_cancelled() and asyncio.run(reply.send(chunk))
    reply.finish(error := UnknownSessionError("x"))
    reply.finish(None)
    assert not asyncio.run(reply.send(chunk)) and not reply.is_cancelled()
    assert (sender.endings, len(sender.chunks), sender.calls_after_end) == ([error], 1, 0)
