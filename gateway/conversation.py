"""One client's stream: requests in, answers out, any number of sessions beside each other. Independent of the protocol.

The server of a protocol calls ``send`` for every request and takes ``next_answer`` until it is ``None``. What the client does not take
waits here: audio up to a limit for each session, after which the session is cancelled; while too many requests are unanswered or answers
untaken, ``send`` waits, and with it the client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable

from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.errors import BistreamError, InvalidInputError
from gateway.admission import Caller
from gateway.gate import Gate
from gateway.requests import FrontModelRequest
from gateway.session import Answer, Session

FIRST_REQUEST_TIMEOUT_S = 60.0  # of a stream that has asked nothing yet, perhaps with half a message


class Conversation:
    """``close`` must be called at its end, whatever the end is."""

    def __init__(self, gate: Gate, caller: Caller) -> None:
        self.caller = caller
        self._gate = gate
        self._owner: Hashable = object() if caller.key is None else caller.key
        self._answers: deque[Answer] = deque()
        self._taken: Answer | None = None  # on its way to the client
        self._has_answer, self._has_room = asyncio.Event(), asyncio.Event()  # something has changed for who waits for it
        self._sessions: set[Session] = set()  # started here
        self._unfinished = 0  # requests without their final response
        self._has_asked = False  # anything
        self._requests_ended = False
        self._is_closed = False
        self._moved_at = gate.clock()  # when a request or an answer last went through
        self.on_close: Callable[[], None] = lambda: None  # ends the client's call
        gate.opened(self)

    # Requests

    async def send(self, request: FrontModelRequest) -> None:
        """Start a session, append to one or cancel one. What is wrong with it is its answer; raises nothing."""
        if not await self._admit_request():
            return
        try:
            await self._gate.check_served(request.model)
            if _is_start(request):
                request = await self._gate.with_keys_settings(self.caller, request)
            session = self._start(request) if _is_start(request) else self._gate.sessions.find(self._owner, request.session_id)
            await session.forward(request, self)
        except BistreamError as error:
            self._put_refusal(
                request.model, request.request_id, request.wants_empty_final, error.renewed(error.session_id or request.session_id)
            )

    async def refuse(self, model: str, request_id: str, wants_empty_final: bool, error: BistreamError) -> None:
        """Answer a request that the door could not read."""
        if await self._admit_request():
            self._put_refusal(model, request_id, wants_empty_final, error)

    def end_of_requests(self) -> None:
        """The client sends no more; the answers end after the last one."""
        self._requests_ended = True
        self._has_answer.set()

    def _start(self, request: FrontModelRequest) -> Session:
        if request.model == COSYVOICE2_BISTREAM.name and request.session_id is None and not request.flag("is_end", True):
            raise InvalidInputError("session_id is missing; send one with every piece, or the whole text with is_end true.")
        session = self._gate.start_session(self._owner, self.caller, self, request)
        self._sessions.add(session)
        return session

    def _put_refusal(self, model: str, request_id: str, wants_empty_final: bool, error: BistreamError) -> None:
        self._gate.metrics.refusals[error.code] += 1
        self.put(Answer(request_id, model, False, wants_empty_final, error=error))
        self.put(Answer(request_id, model, True, wants_empty_final))

    async def _admit_request(self) -> bool:
        """Wait until there is room for one more request. False: the conversation is closed, and nobody will hear the answer."""
        limit = self._gate.limits.max_unanswered
        while not self._is_closed and (len(self._answers) >= limit or self._unfinished - len(self._sessions) >= limit):
            self._has_room.clear()
            await self._has_room.wait()
        if not self._answers:  # new requests do not reset the timer of a client that reads nothing
            self._moved_at = self._gate.clock()
        self._gate.metrics.requests += 1
        self._has_asked = True
        self._unfinished += 1
        return not self._is_closed

    # Answers

    def put(self, answer: Answer) -> None:
        """Called by the sessions."""
        if self._is_closed:
            if answer.session is not None:
                answer.session.count_unread(-answer.size)
            return
        if not self._answers:
            self._moved_at = self._gate.clock()
        if answer.is_final:
            self._unfinished -= 1
            self._has_room.set()
        self._answers.append(answer)
        self._has_answer.set()

    def drop_audio(self, session: Session) -> None:
        kept = [answer for answer in self._answers if answer.session is not session]
        session.count_unread(-sum(answer.size for answer in self._answers if answer.session is session))
        self._answers.clear()
        self._answers.extend(kept)

    async def next_answer(self) -> Answer | None:
        """Waits; ``None`` once everything is answered and no request can come. Call ``sent`` when the client has it."""
        while not self._answers:
            if self._is_closed or (self._requests_ended and not self._unfinished):
                return None
            self._has_answer.clear()
            await self._has_answer.wait()
        self._taken = self._answers.popleft()
        return self._taken

    def sent(self, answer: Answer, size: int) -> None:
        """The client has taken ``size`` bytes."""
        if self._is_closed:
            return  # what was on its way is no longer counted
        self._moved_at = self._gate.clock()
        if answer is self._taken:
            self._taken = None
        metrics = self._gate.metrics
        metrics.bytes_out += size
        if answer.session is not None:
            answer.session.count_unread(-answer.size)
            metrics.audio_bytes += answer.size
        self._has_room.set()

    # The end

    def forget(self, session: Session) -> None:
        """A session that was started here is over."""
        self._sessions.discard(session)

    def is_useless(self, now: float) -> bool:
        """Its client takes nothing any more, or has had no session for very long."""
        limits, quiet_s = self._gate.limits, now - self._moved_at
        if self._answers or self._taken is not None:
            return quiet_s > limits.stall_timeout_s
        limit_s = limits.idle_stream_timeout_s if self._has_asked else min(FIRST_REQUEST_TIMEOUT_S, limits.idle_stream_timeout_s)
        return not self._sessions and quiet_s > limit_s

    def close(self) -> None:
        """The client has gone or is done: its sessions are ended and nothing is kept. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for session in list(self._sessions):
            session.abandon()
        for answer in (*self._answers, *([] if self._taken is None else [self._taken])):
            if answer.session is not None:
                answer.session.count_unread(-answer.size)
        self._answers.clear()
        self._has_room.set()
        self._has_answer.set()
        self._gate.forget(self)
        self.on_close()


def _is_start(request: FrontModelRequest) -> bool:
    return request.flag("is_start", True) and not request.flag("is_cancel", False)
