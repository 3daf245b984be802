"""One session: its stream to Triton, the requests on it that are not answered yet, and what it may still take.

A session has a Triton stream of its own (``session_stream``), so it can be ended without touching another one of the same client. Towards
Triton it goes by an id that the gate makes; the client's own id stays in the gate. All methods run in the event loop.
"""

from __future__ import annotations

import codecs
import contextlib
import logging
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tritonclient.grpc import service_pb2

from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.contract.refusals import came_late
from bistream.errors import BistreamError, CancelledError, EngineError, InvalidInputError
from gateway.admission import Caller
from gateway.budget import Budget
from gateway.earlier import EarlierIds, owner_of
from gateway.messages import audio_bytes, is_final
from gateway.requests import FrontModelRequest
from gateway.session_stream import SessionStream
from gateway.settings import GateLimits
from gateway.upstream import FAILED, LOST, UNREACHABLE, UpstreamLost, UpstreamStream, public_error

logger = logging.getLogger(__name__)

START = "0"  # the id towards Triton of the request that carries the audio
BYTES_PER_SAMPLE = 4
FAIR_UNREAD_S = 10.0  # that a session may leave unread when all clients together leave too much
_SPEAKABLE = re.compile(r"[^\W_]")  # a letter or a digit of any script


@dataclass(slots=True)
class Answer:
    """One message to the client. response: Triton's, with outputs; error: else; neither: the empty final response.

    session: whose audio it is, ``size`` bytes of it.
    """

    request_id: str
    model: str
    is_final: bool
    wants_empty_final: bool
    response: Any = None
    error: BistreamError | None = None
    session: Session | None = None
    size: int = 0


class ClientStream(Protocol):
    """A client's stream of requests and answers: of a session's start, with which the session ends, or of a later request."""

    def put(self, answer: Answer) -> None: ...

    def drop_audio(self, session: Session) -> None:
        """Forget the audio of this session that was not sent yet."""

    def forget(self, session: Session) -> None:
        """A session that was started here is over."""

    def is_useless(self, now: float) -> bool:
        """Whether nothing has gone through it for so long that it may be closed."""

    def close(self) -> None:
        """Idempotent."""


@dataclass(slots=True)
class Pending:
    """A request that Triton has not answered in full. has_error: it was told one, and is told no other."""

    listener: ClientStream
    request_id: str
    wants_empty_final: bool
    has_error: bool = False


@dataclass(frozen=True)
class SessionSurroundings:
    """What a session knows of the gate. on_end: called once, when the session takes no more requests. count_error: told every error,
    and whether the gate itself gave it. loss: the error that a session ends with when Triton is lost. output_budget: of unread audio."""

    limits: GateLimits
    clock: Callable[[], float]
    on_end: Callable[[Session], None]
    count_error: Callable[[BistreamError, bool], None]
    loss: Callable[[str], BistreamError]
    output_budget: Budget
    earlier: EarlierIds


class Session:
    """owner: whose it is, the client's stream or its API key; client_id: the id that the client gave, ``None`` for a session that is one
    request. ``run`` must be started as a task: it ends the session when Triton's stream ends."""

    def __init__(
        self,
        owner: Hashable,
        caller: Caller,
        home: ClientStream,
        start: FrontModelRequest,
        stream: UpstreamStream,
        around: SessionSurroundings,
    ) -> None:
        self.owner = owner
        self.caller = caller
        self.home = home
        self.client_id = start.session_id
        self.model = start.model
        self.error: BistreamError | None = None  # that ended it early
        self._continued_by = owner_of(owner, caller, start)
        self.unread_bytes = 0  # of audio, on its way to the client
        self._stream = SessionStream(stream, start.model, self._on_response)
        self._around = around
        self._pending: dict[str, Pending] = {}
        self._count = 0
        self._text_bytes = 0
        self._text_ended = start.model != COSYVOICE2_BISTREAM.name
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._quiet_since = around.clock()
        self._is_over = False  # it takes no more requests
        self._has_answered = False

    # Requests

    async def forward(self, request: FrontModelRequest, listener: ClientStream) -> None:
        """Pass a request on; its answers go to ``listener``. Waits while Triton has no room. Raises ``BistreamError``."""
        if self._is_over:
            raise self.end_error()
        request = self._without_recordings(request) if self._count else self._around.earlier.translated(self._continued_by, request)
        self._take_text(request)
        request_id = str(self._count)
        self._count += 1
        self._pending[request_id] = Pending(listener, request.request_id, request.wants_empty_final)
        try:
            await self._stream.write(request, request_id)
        except UpstreamLost:
            self.fail(self._loss())

    def _without_recordings(self, request: FrontModelRequest) -> FrontModelRequest:
        """Only a start may be large; the models refuse another request with a recording too. Raises ``InvalidInputError``."""
        if request.flag("is_cancel", False):
            return replace(request, tensors={"is_cancel": request.tensors["is_cancel"]})
        if "reference_wav" in request.tensors:
            raise InvalidInputError("The voice of a session is set by its first request; send later pieces without it.", self.client_id)
        if "source_wav" in request.tensors:
            raise InvalidInputError("source_wav is sent whole; start a session with it.", self.client_id)
        return request

    def end_error(self) -> BistreamError:
        """What a request is told that comes after the end."""
        return came_late(self.error, self.client_id)

    def _take_text(self, request: FrontModelRequest) -> None:
        """Raises ``InvalidInputError`` when the text of the session becomes too long."""
        if "is_cancel" in request.tensors and request.flag("is_cancel", False):
            return
        piece = request.data("target_text")
        limit = self._around.limits.max_text_bytes
        if self._text_bytes + len(piece) > limit:
            raise InvalidInputError(
                f"The text of this session has more than {limit} bytes; split it over several sessions.", self.client_id
            )
        self._text_bytes += len(piece)
        if _SPEAKABLE.search(self._decoder.decode(piece)):
            self._quiet_since = self._around.clock()
        if request.flag("is_end", True):
            self._text_ended = True

    def is_silent(self, now: float) -> bool:
        """Whether text may still come, and nothing that can be spoken has come, nor audio gone, for too long."""
        return not self._text_ended and not self._is_over and now - self._quiet_since > self._around.limits.max_silence_s

    # Answers

    async def run(self) -> None:
        """Until Triton has ended the stream, or is lost."""
        try:
            with contextlib.suppress(UpstreamLost):
                await self._stream.receive()
        finally:
            self.fail(self._loss())
            self._stream.close()

    def _on_response(self, data: bytes) -> None:
        """Called by the link to Triton, which is everybody's: raises nothing."""
        try:
            self._take_response(data)
        except Exception:
            logger.exception("a response could not be handled")
            self.fail(EngineError(FAILED))
        if self._is_over and not self._pending:
            # Half-close: a stream that is cancelled in the moment of an answer keeps Triton from unloading its model.
            self._stream.finish()

    def _take_response(self, data: bytes) -> None:
        response = service_pb2.ModelStreamInferResponse.FromString(data)
        self._has_answered = True
        request_id = response.infer_response.id
        pending = self._pending.get(request_id)
        if pending is None:
            return
        final = is_final(response)
        if response.error_message:
            error = public_error(response.error_message).renewed(self.client_id)
            self._around.count_error(error, False)
            if request_id == START:
                self.error = error
                self._close_soon()  # before the client hears of it and starts the same id again
            self._answer(pending, error=error)
            if final:
                self._answer(pending, final=True)
        elif response.infer_response.outputs:
            self._pass_audio(pending, response, final)
        elif final:
            self._answer(pending, final=True)
        if final:
            self._pending.pop(request_id, None)
            if request_id == START:
                self._close_soon()

    def _pass_audio(self, pending: Pending, response: Any, final: bool) -> None:
        size = audio_bytes(response.infer_response)
        self._quiet_since = self._around.clock()
        self.count_unread(size)
        limit = self._around.limits.max_unread_audio_s
        if self._around.output_budget.is_exceeded:
            limit = min(limit, FAIR_UNREAD_S)
        if self.unread_bytes > limit * BYTES_PER_SAMPLE * self._around.limits.sample_rate:
            self.count_unread(-size)
            pending.listener.drop_audio(self)
            self.fail(CancelledError(f"The client left more than {limit:g} s of audio unread; read it as it comes."))
            return
        self._answer(pending, response=response, final=final, size=size)

    def count_unread(self, size: int) -> None:
        """Audio that waits for the client, or, where ``size`` is negative, no longer does."""
        self.unread_bytes += size
        self._around.output_budget.add(size)

    def _answer(
        self, pending: Pending, response: Any = None, error: BistreamError | None = None, final: bool = False, size: int = 0
    ) -> None:
        if error is not None:
            if pending.has_error:
                return
            pending.has_error = True
        pending.listener.put(
            Answer(pending.request_id, self.model, final, pending.wants_empty_final, response, error, self if size else None, size)
        )

    # The end

    def fail(self, error: BistreamError) -> None:
        """Every request that is not answered gets ``error`` and its final response, and Triton's side is ended. Idempotent."""
        if not self._is_over or self._pending:
            pending, self._pending = self._pending, {}
            error = error.renewed(self.client_id)
            if self.error is None:
                self.error = error
            self._around.count_error(error, True)
            for one in pending.values():
                self._answer(one, error=error)
                self._answer(one, final=True)
            self._stream.leave(bool(pending) and not self._is_over)
        self._end()

    def abandon(self) -> None:
        """The stream that started it is gone, and with it the session. Requests from other streams of its key are answered."""
        others = [pending for pending in self._pending.values() if pending.listener is not self.home]
        is_unanswered = bool(self._pending)
        self._pending.clear()
        for one in others:
            self._answer(one, error=CancelledError("The stream on which this session was started was closed.", self.client_id))
            self._answer(one, final=True)
        if not self._is_over and self.error is None:
            self.error = CancelledError("The stream on which this session was started was closed.", self.client_id)
        self._stream.leave(is_unanswered and not self._is_over)
        self._end()

    def _close_soon(self) -> None:
        """The start was answered; Triton has a little time for the rest."""
        self._stream.limit_time()
        self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            if self.error is None:
                self._around.earlier.add(self._continued_by, self.client_id, self._stream.own_id)
            self._around.on_end(self)

    def _loss(self) -> BistreamError:
        return self._around.loss(LOST if self._has_answered else UNREACHABLE)
