"""The gate without its doors: who is let in, the live sessions, and the end of it all. One per process, in one event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tritonclient.grpc import service_pb2

from bistream.contract.checks import MARKDOWN, RAW
from bistream.contract.fields import COSYVOICE2_BISTREAM, LLM_BISTREAM
from bistream.contract.lexicon import joined_lexicon
from bistream.errors import (
    BistreamError,
    BusyError,
    EngineError,
    SessionTimeoutError,
    ShuttingDownError,
    UnauthenticatedError,
    WrongCallError,
)
from gateway.admission import Admission, Caller, host_of
from gateway.budget import Budget, InputBudget
from gateway.earlier import EarlierIds
from gateway.keys import Keys
from gateway.messages import request_bytes
from gateway.metrics import Metrics
from gateway.requests import PUBLIC, FrontModelRequest, bytes_tensor, flag_tensor, not_served
from gateway.session import ClientStream, Session, SessionSurroundings
from gateway.session_table import SessionTable
from gateway.settings import GateSettings
from gateway.upstream import UNREACHABLE, Upstream

logger = logging.getLogger(__name__)

CLIENT_ADDRESS = "x-client-address"  # the header in which the proxy before the gate says who its client is
SWEEP_INTERVAL_S = 0.5
CLOSING_S = 1.0  # at the end, for Triton to answer the cancels
_DRAINING = "The server is shutting down and takes no new sessions; connect to another one."
_ENDED = "The server is shutting down; start the session on another one."


class Gate:
    """keys: ``None`` lets everybody in. Made inside the running loop; ``run`` must be started as a task."""

    def __init__(
        self, settings: GateSettings, upstream: Upstream, keys: Keys | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.clock = clock
        self.metrics = Metrics()
        self.upstream = upstream
        self.sessions = SessionTable()
        self.admission = Admission(settings.limits, clock)
        self.is_draining = False
        self._keys = keys
        self.input_budget = InputBudget(settings.limits.max_input_bytes)
        self.output_budget = Budget(settings.limits.max_output_bytes)
        self._around = SessionSurroundings(
            settings.limits, clock, self._on_session_end, self._count_error, self._loss, self.output_budget, EarlierIds(clock)
        )
        self.streams: set[ClientStream] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls = 0  # unary ones under way

    @property
    def is_ready(self) -> bool:
        """Whether a new session would be taken."""
        return self.upstream.is_ready and not self.is_draining

    def address_of(self, headers: Mapping[str, str], peer: str) -> str:
        """The address that counts for a request. headers: with lower-case names; peer: the host at the other end of the connection."""
        return host_of(headers.get(CLIENT_ADDRESS, peer) if self.settings.behind_proxy else peer)

    def caller(self, headers: Mapping[str, str], address: str) -> Caller:
        """Who sends a request. Raises ``UnauthenticatedError``."""
        try:
            return Caller(address, None if self._keys is None else self._keys.name_of(headers))
        except UnauthenticatedError as error:
            self._count_error(error, True)
            raise

    # Work

    def opened(self, stream: ClientStream) -> None:
        """A client has opened a stream; ``forget`` it once it is closed."""
        self.streams.add(stream)
        self.metrics.streams += 1

    @contextmanager
    def call(self, caller: Caller) -> Iterator[None]:
        """Counts a call of its caller, from its first byte to its last. Raises ``BusyError``."""
        try:
            self.admission.open_call(caller)
        except BusyError as error:
            self._count_error(error, True)
            raise
        try:
            yield
        finally:
            self.admission.close_call(caller)

    def forget(self, stream: ClientStream) -> None:
        self.streams.discard(stream)

    def start_session(self, owner: Hashable, caller: Caller, home: ClientStream, request: FrontModelRequest) -> Session:
        """Admit a session and open its stream to Triton; the request itself is not sent yet. Raises ``BistreamError``."""
        self._refuse_when_closed()
        self.sessions.refuse_existing(owner, request.session_id)
        self.admission.open_session(caller)
        self.metrics.sessions += 1
        session = Session(owner, caller, home, request, self.upstream.open_stream(), self._around)
        self.sessions.add(session)
        task = asyncio.create_task(session.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return session

    async def check_served(self, model: str) -> None:
        """Triton dies of some requests to models that it has not. Raises ``InvalidInputError`` for a front model of another family than
        the server's, and ``BistreamError`` where that cannot be known now."""
        if PUBLIC[model].family:
            self._refuse_when_closed()
            if not await self.upstream.is_model_ready(model):
                raise not_served(model)

    async def with_keys_settings(self, caller: Caller, start: FrontModelRequest) -> FrontModelRequest:
        """With the mark of its API key, and its lexicon behind the start's own; raw text may have none. Raises ``BistreamError``."""
        if self._keys is None:
            return start
        if self._keys.is_marked(caller.key):
            start = replace(start, tensors={**start.tensors, "is_marked": flag_tensor("is_marked")})
        lexicon = self._keys.lexicon_of(caller.key)
        if not lexicon or await self._is_raw(start):
            return start
        joined = joined_lexicon(start.data("lexicon").decode(), lexicon)
        return replace(start, tensors={**start.tensors, "lexicon": bytes_tensor("lexicon", joined.encode())})

    async def _is_raw(self, start: FrontModelRequest) -> bool:
        chosen = start.data("text_normalization").decode()
        if chosen in ("", MARKDOWN):  # the server's own
            self._refuse_when_closed()
            question = service_pb2.ModelConfigRequest(name=LLM_BISTREAM.name)
            answer = await self.upstream.ask("ModelConfig", question, service_pb2.ModelConfigResponse)
            chosen = answer.config.parameters["text_normalization"].string_value
        return chosen == RAW

    async def infer(self, caller: Caller, request: FrontModelRequest) -> Any:
        """A whole text in one call: a ``ModelInferResponse`` with the client's id. Raises ``BistreamError``."""
        if request.model == COSYVOICE2_BISTREAM.name:
            raise WrongCallError(f"Model {request.model} streams; call it with ModelStreamInfer over gRPC.")
        with self._unary_session(caller):
            await self.check_served(request.model)
            request = await self.with_keys_settings(caller, request)
            response = await self.upstream.infer(request_bytes(request, "0", request.tensors))
        response.id = request.request_id
        return response

    @contextmanager
    def _unary_session(self, caller: Caller) -> Iterator[None]:
        self.metrics.requests += 1
        try:
            self._refuse_when_closed()
            self.admission.open_session(caller)
        except BistreamError as error:
            self._count_error(error, True)
            raise
        self.metrics.sessions += 1
        self._calls += 1
        try:
            yield
        except BistreamError as error:
            self._count_error(error, False)
            raise
        finally:
            self._calls -= 1
            self.admission.close_session(caller)

    def _refuse_when_closed(self) -> None:
        if self.is_draining:
            raise ShuttingDownError(_DRAINING)
        if not self.upstream.is_ready:
            raise EngineError(UNREACHABLE)

    def _on_session_end(self, session: Session) -> None:
        self.sessions.remove(session)
        self.admission.close_session(session.caller)
        session.home.forget(session)

    def _count_error(self, error: BistreamError, is_own: bool) -> None:
        counts = self.metrics.refusals if is_own else self.metrics.errors
        counts[error.code] += 1

    def _loss(self, sentence: str) -> BistreamError:
        return ShuttingDownError(_ENDED) if self.is_draining else EngineError(sentence)

    # Time

    async def run(self) -> None:
        """End what has been silent, unread or useless for too long. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            try:
                self.sweep()
            except Exception:  # the next one is needed all the more
                logger.exception("a sweep failed")

    def sweep(self) -> None:
        now = self.clock()
        for session in self.sessions:
            if session.is_silent(now):
                limit = self.limits.max_silence_s
                session.fail(SessionTimeoutError(f"No text that can be spoken came for {limit:g} s; start the session when there is some."))
        for stream in list(self.streams):
            if stream.is_useless(now):
                stream.close()

    # The end

    @property
    def sessions_left(self) -> int:
        return len(self.sessions) + self._calls

    async def drain(self, timeout_s: float, hurried: asyncio.Event) -> None:
        """Take no new sessions, wait for those that run, and end the rest after ``timeout_s`` or at once when ``hurried`` is set."""
        self.is_draining = True
        logger.info("draining: %d sessions may go on for %.0f s", self.sessions_left, timeout_s)
        deadline = self.clock() + timeout_s
        while self.sessions_left and not hurried.is_set() and self.clock() < deadline:
            await asyncio.sleep(0.02)
        if self.sessions_left:
            logger.warning("%d sessions had not ended and are ended now", self.sessions_left)
        for session in self.sessions:
            session.fail(ShuttingDownError(_ENDED))

    async def close(self) -> None:
        """Free everything. Sessions that are left are cancelled; those that Triton does not end at once lose their stream."""
        for stream in list(self.streams):
            stream.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSING_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.upstream.close()

    def gauges(self) -> dict[str, float]:
        return {
            "open_streams": self.admission.calls,
            "open_sessions": self.admission.sessions,
            "ready": float(self.is_ready),
        }
