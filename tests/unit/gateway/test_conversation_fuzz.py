"""Random lives of streams and sessions, with and without API keys: every request gets one final response, and nothing is left."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from bistream.errors import BusyError
from gateway.conversation import Conversation
from gateway.keys import Keys
from gateway.settings import GateLimits
from tests.unit.gateway.fakes import House, settle
from tests.unit.gateway.marks import long
from tests.unit.gateway.requests import OFFLINE, append, cancel, request, start

KEYS = Keys({"k" * 16: "anna", "l" * 16: "bert"})
LIMITS = GateLimits(
    max_sessions=5,
    sessions_per_key=3,
    sessions_per_address=3,
    start_burst=6,
    streams_per_address=3,
    max_streams=5,
    max_unanswered=3,
    max_text_bytes=40,
    max_unread_audio_s=3.0,
    max_output_bytes=1_000_000,
    max_silence_s=30.0,
)
WHO = st.sampled_from((0, 0, 0, 1, 1, 1, 2, 3, 4))
NAMES = st.sampled_from(("a", "a", "a", "b"))
TEXTS = st.sampled_from(("x", "", "more text", 30 * "y"))
STREAM = st.sampled_from((0, 0, 0, 1, 1, 2, 3, 9))
STEPS = st.one_of(
    st.tuples(st.just("open"), WHO),
    st.tuples(st.just("start"), WHO, NAMES, TEXTS, st.booleans()),
    st.tuples(st.just("start"), WHO, NAMES, TEXTS, st.booleans()),
    st.tuples(st.just("whole"), WHO),
    st.tuples(st.just("append"), WHO, NAMES, TEXTS, st.booleans()),
    st.tuples(st.just("append"), WHO, NAMES, TEXTS, st.booleans()),
    st.tuples(st.just("cancel"), WHO, NAMES),
    st.tuples(st.just("take"), WHO, st.integers(1, 6), st.sampled_from((0, 1, 6))),
    st.tuples(st.just("half-close"), WHO),
    st.tuples(st.just("close"), WHO),
    st.tuples(st.just("audio"), STREAM, st.sampled_from((0.1, 1.0, 2.5)), st.booleans()),
    st.tuples(st.just("final"), STREAM, st.integers(0, 4)),
    st.tuples(st.just("error"), STREAM, st.sampled_from(("CANCELLED: Cancelled.", "BUSY: Later.", "Words of Triton.")), st.booleans()),
    st.tuples(st.just("lose"), STREAM),
    st.tuples(st.just("wait"), st.sampled_from((1.0, 40.0, 700.0))),
    st.tuples(st.just("ready"), st.booleans()),
    st.tuples(st.just("drain")),
)


class Client:
    """A stream of a client: its requests by id, what was answered, and the tasks that send and take."""

    def __init__(self, conversation: Conversation, number: int) -> None:
        self.conversation = conversation
        self.number = number
        self.requests: list[str] = []
        self.finals: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.is_closed = False
        self.is_half_closed = False
        self.is_done = False
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.sender = asyncio.create_task(self._send())
        self.wanted = asyncio.Semaphore(0)
        self.arrived = asyncio.Semaphore(0)
        self.taker = asyncio.create_task(self._take())
        conversation.on_close = self._on_close

    def _on_close(self) -> None:
        self.is_closed = True

    async def _send(self) -> None:
        """One request after the other, as a door does."""
        while (made := await self.queue.get()) is not None:
            await self.conversation.send(made)
        self.conversation.end_of_requests()

    async def _take(self) -> None:
        while True:
            await self.wanted.acquire()
            answer = await self.conversation.next_answer()
            if answer is None:
                self.is_done = True
                return
            await self.arrived.acquire()  # until then on its way
            assert answer.request_id in self.requests, "an answer of another stream"
            assert not self.finals[answer.request_id], "an answer after the final one"
            self.finals[answer.request_id] += answer.is_final
            self.errors[answer.request_id] += answer.error is not None
            self.conversation.sent(answer, answer.size)

    def send(self, made: Any) -> None:
        self.requests.append(made.request_id)
        self.queue.put_nowait(made)

    def release(self, wanted: int, arrived: int) -> None:
        for _ in range(wanted):
            self.wanted.release()
        for _ in range(arrived):
            self.arrived.release()

    def next_id(self) -> str:
        return f"{self.number}.{len(self.requests)}"


class World:
    def __init__(self, with_keys: bool) -> None:
        self.house = House(LIMITS, KEYS if with_keys else None)
        self.with_keys = with_keys
        self.clients: dict[int, Client] = {}
        self.all: list[Client] = []
        self.drain: asyncio.Task[None] | None = None
        self.hurried = asyncio.Event()

    def step(self, what: str, *values: Any) -> None:
        getattr(self, "do_" + what.replace("-", "_"))(*values)

    def client(self, who: int) -> Client | None:
        found = self.clients.get(who)
        return None if found is None or found.is_closed or found.is_half_closed else found

    def do_open(self, who: int) -> None:
        if who in self.clients and not self.clients[who].is_closed:
            return
        try:
            key = None if not self.with_keys else ("k" * 16, "k" * 16, "k" * 16, "l" * 16, "l" * 16)[who]
            conversation = self.house.client(f"10.0.0.{who % 2}", key)
        except BusyError:
            return
        self.clients[who] = Client(conversation, len(self.all))
        self.all.append(self.clients[who])

    def do_start(self, who: int, name: str, text: str, is_end: bool) -> None:
        if (one := self.client(who)) is not None:
            one.send(start(name, text, is_end, one.next_id()))

    def do_whole(self, who: int) -> None:
        if (one := self.client(who)) is not None:
            one.send(request(OFFLINE, one.next_id(), target_text="x"))

    def do_append(self, who: int, name: str, text: str, is_end: bool) -> None:
        if (one := self.client(who)) is not None:
            one.send(append(name, text, is_end, one.next_id()))

    def do_cancel(self, who: int, name: str) -> None:
        if (one := self.client(who)) is not None:
            one.send(cancel(name, one.next_id()))

    def do_take(self, who: int, wanted: int, arrived: int) -> None:
        if who in self.clients:
            self.clients[who].release(wanted, arrived)

    def do_half_close(self, who: int) -> None:
        if (one := self.client(who)) is not None:
            one.is_half_closed = True
            one.queue.put_nowait(None)

    def do_close(self, who: int) -> None:
        if who in self.clients:
            self.clients[who].conversation.close()

    def streams(self, index: int) -> list[Any]:
        return self.house.upstream.streams[-1 - index : len(self.house.upstream.streams) - index]

    def do_audio(self, index: int, seconds: float, final: bool) -> None:
        for one in self.streams(index):
            one.audio(seconds=seconds, final=final)

    def do_final(self, index: int, request_id: int) -> None:
        for one in self.streams(index):
            one.final(str(request_id))

    def do_error(self, index: int, words: str, with_final: bool) -> None:
        for one in self.streams(index):
            one.error(words)
            if with_final:
                one.final()

    def do_lose(self, index: int) -> None:
        for one in self.streams(index):
            one.lose()

    def do_wait(self, seconds: float) -> None:
        self.house.clock.now += seconds
        self.house.gate.sweep()

    def do_ready(self, is_ready: bool) -> None:
        self.house.upstream.is_ready = is_ready

    def do_drain(self) -> None:
        if self.drain is None:
            self.drain = asyncio.create_task(self.house.gate.drain(60.0, self.hurried))

    def check(self) -> None:
        gate = self.house.gate
        assert 0 <= gate.admission.sessions == len(gate.sessions) <= LIMITS.max_sessions
        owners = Counter(holder for session in gate.sessions for holder in session.caller.holders)
        assert all(count <= 3 for count in owners.values()) and dict(gate.admission._sessions) == dict(owners)
        assert len(gate.streams) == sum(not one.is_closed for one in self.all)
        assert gate.output_budget.used == sum(session.unread_bytes for session in self.sessions()) >= 0
        live = [one for one in self.house.upstream.streams if not one.is_cancelled and not one._ended.done()]
        assert len(live) >= len(gate.sessions)

    def sessions(self) -> set[Any]:
        """Those that audio is kept of, whether they are over or not."""
        kept = {answer.session for one in self.all for answer in one.conversation._answers if answer.session is not None}
        return kept | {one.conversation._taken.session for one in self.all if one.conversation._taken and one.conversation._taken.session}

    async def end(self) -> None:
        """The server ends every stream, and the clients half-close and take everything."""
        for one in self.all:
            if not one.is_half_closed:
                one.queue.put_nowait(None)
            one.release(500, 500)
        for _ in range(30):
            await settle()
            for stream in self.house.upstream.streams:
                stream.lose()
        self.hurried.set()
        for one in self.all:
            if not one.is_closed:
                assert one.is_done and set(one.requests) == set(one.finals), (one.requests, one.finals)
                assert all(count == 1 for count in one.finals.values()) and all(count <= 1 for count in one.errors.values())
            one.conversation.close()
        await settle()
        for one in self.all:
            one.taker.cancel()
            await asyncio.gather(one.sender, one.taker, return_exceptions=True)
            assert one.sender.exception() is None
        if self.drain is not None:
            await self.drain
        gate = self.house.gate
        await asyncio.gather(*gate._tasks)
        assert not gate._tasks and not gate.streams and not len(gate.sessions)
        assert (gate.admission.sessions, gate.output_budget.used) == (0, 0)
        assert not gate.admission._sessions and not gate.sessions._live


def live(with_keys: bool, steps: list[tuple[Any, ...]]) -> None:
    async def test() -> None:
        world = World(with_keys)
        for who in (0, 1, 3):
            world.do_open(who)
        for step in steps:
            world.step(*step)
            await settle()
            world.check()
        await world.end()

    asyncio.run(test())


OTHERS_APPEND = [("start", 0, "a", "x", False), ("append", 1, "a", "x", False), ("close", 0)]
IN_FLIGHT = [("start", 0, "a", "x", False), ("take", 0, 2, 0), ("audio", 0, 1.0, False), ("close", 0)]


@example(True, OTHERS_APPEND)
@example(False, IN_FLIGHT)
@given(st.booleans(), st.lists(STEPS, min_size=5, max_size=40))
def test_every_request_gets_one_final_response_and_nothing_is_left(with_keys: bool, steps: list[tuple[Any, ...]]) -> None:
    live(with_keys, steps)


@long
@settings(max_examples=20_000, deadline=None)
@given(st.booleans(), st.lists(STEPS, min_size=5, max_size=80))
def test_very_many_lives_of_streams_leave_nothing(with_keys: bool, steps: list[tuple[Any, ...]]) -> None:
    live(with_keys, steps)
