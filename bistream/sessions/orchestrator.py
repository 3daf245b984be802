"""The logic of ``cosyvoice2_bistream`` without Triton: requests in, audio out, over the ports of the four models.

All sessions live in one event loop (``event_loop.py``), so that none of their state needs a lock: ``handle`` checks what a request says by
itself and passes it to the loop. Called by the model ``cosyvoice2_bistream`` and by ``local.py``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from bistream.checkpoints.files import family_of
from bistream.checkpoints.model_card import read_model_card
from bistream.config import RuntimeConfig
from bistream.contract.checks import check_session_id, check_session_secret
from bistream.contract.ended_sessions import EndedSessions
from bistream.contract.refusals import accepts_no_sessions, cancelled_by_client, session_exists, sessions_taken, shut_down
from bistream.errors import BistreamError, EngineError, InvalidInputError, UnknownVoiceError
from bistream.hops.policy import HopPolicy
from bistream.metrics.recorder import Recorder
from bistream.sessions.event_loop import EventLoop
from bistream.sessions.load import LoadControl, Need, need_of, reserved_speech_s, text_bytes
from bistream.sessions.ports import AudioSender, BistreamRequest, Ports, SessionKey
from bistream.sessions.request_checks import SessionStart, TextLedger, check_append, check_start, ledger_of
from bistream.sessions.services import Services
from bistream.sessions.session import CallerSession
from bistream.sessions.session_record import SessionMetrics
from bistream.sessions.speaking import SessionRun
from bistream.sessions.voices import Voices
from bistream.sessions.watcher import Watcher

logger = logging.getLogger(__name__)

HELPER_THREADS = 2
CLOSE_TIMEOUT_S = 5.0  # cancelled sessions end within a hop; do not wait for a dead model


class Orchestrator:
    """All live sessions of one process. Thread-safe; methods whose names begin with an underscore belong to the event loop.

    watched: False leaves calling ``watch`` to the caller (tests). recorder: takes what the sessions count.
    """

    def __init__(
        self,
        config: RuntimeConfig,
        ports: Ports,
        clock: Callable[[], float] = time.monotonic,
        watched: bool = True,
        recorder: Recorder | None = None,
    ) -> None:
        self._config = config
        self._card = read_model_card(config.model_dir)
        self._clock = clock
        self._metrics = SessionMetrics(recorder or Recorder())
        self._ids = random.Random(os.urandom(32))
        self._loop = EventLoop("bistream-sessions")
        self._helpers = ThreadPoolExecutor(HELPER_THREADS, "bistream-helper")
        family = family_of(config.model_dir)
        hop_policy = HopPolicy.of(family, config)
        voices = Voices(config, ports.voice)
        self._services = Services(config, ports, voices, family, hop_policy, self._loop, self._helpers, clock, self._metrics)
        self.listed_voices = self._services.voices.listed
        self._reachable: dict[SessionKey, SessionRun] = {}  # until the session ends
        self._ended = EndedSessions()  # by the same key
        self._open: dict[str, SessionRun] = {}  # by our id, until everything is freed
        self._watcher = Watcher(self._open)
        token2wav = ports.token2wav
        self._load = LoadControl(config.admission_load, token2wav.report, self._needs, clock, config.reserved_speech_s)
        self._refusal: BistreamError | None = None  # of every new session: the server drains, or is about to be restarted
        self._sessions_changed = asyncio.Event()  # one was added, has ended or was removed
        self._metrics.watch(self._session_states, self._deliveries, self._read_load)
        if watched:
            self._loop.call(self._loop.start_task, self._watcher.watch_on(lambda: self._until(lambda: bool(self._open), None)))

    @property
    def open_sessions(self) -> int:
        """Sessions that hold resources, including those being closed."""
        return len(self._open)

    def _needs(self) -> list[Need]:
        """Of all live sessions."""
        now = self._clock()
        return [self._count_need(run, now) for run in self._open.values()]

    def _count_need(self, run: SessionRun, now: float) -> Need:
        run.counted = need_of(run.session.start, run.standing(now), self._load.report, self._load.lengths, self._services.audio_format)
        return run.counted

    # Requests

    def handle(self, request: BistreamRequest, sender: AudioSender) -> None:
        """Start a session, append to it or cancel it. Returns at once and never raises; requests are taken in the order of the calls.

        ``sender`` is finished exactly once: that of a start after the session's audio, any other soon.
        """
        try:
            start = self._check(request)
        except Exception as error:
            self._refuse(request, sender, error)
            return
        if not self._loop.call(self._take, request, start, sender):
            self._refuse(request, sender, accepts_no_sessions())

    def _refuse(self, request: BistreamRequest, sender: AudioSender, error: Exception) -> None:
        """From any thread."""
        if not isinstance(error, BistreamError):
            logger.error("a request failed", exc_info=error)
            error = EngineError("The server failed while reading this request; try again.")
        refusal = error.renewed(error.session_id or request.session_id)
        self._metrics.refused(refusal)
        sender.finish(refusal)

    def _check(self, request: BistreamRequest) -> tuple[SessionStart, TextLedger] | None:
        """What needs no session, in the caller's thread: a recording takes its time. None: the request starts no session."""
        if request.session_id is not None:
            check_session_id(request.session_id)
        if request.session_secret is not None:
            check_session_secret(request.session_secret)
        if request.is_cancel or not request.is_start:
            if request.key is None:
                raise InvalidInputError("session_id is missing; send the id of a started session.")
            return None
        start = check_start(request, self._config, self._card)
        text = ledger_of(start, self._config, self._card, self._services.family.spoken_tokens)
        if start.source_wav is None:
            text.accept(start.text, start.is_end)
        else:
            text.ended = True
        return start, text

    def _take(self, request: BistreamRequest, start: tuple[SessionStart, TextLedger] | None, sender: AudioSender) -> None:
        try:
            if start is not None:
                self._start(*start, sender)
                return
            run = self._find_run(request)
            if request.is_cancel:
                sender.report(run.heard())  # before the session's own end, after which a client may stop listening
                run.end_early(cancelled_by_client())
            else:
                check_append(request, self._card)
                run.append(request.target_text or b"", request.is_end, request.speed)
        except Exception as error:
            self._refuse(request, sender, error)
        else:
            sender.finish(None)

    def _find_run(self, request: BistreamRequest) -> SessionRun:
        key = request.key
        assert key is not None, "a checked request"
        run = self._reachable.get(key)
        if run is None:
            raise self._ended.error_of(key, key.session_id)
        return run

    def _start(self, start: SessionStart, text: TextLedger, sender: AudioSender) -> None:
        self._refuse_existing(start.key)
        start = self._find_voice(start)
        session = CallerSession(start, text, f"{self._ids.getrandbits(128):032x}", sender, self._clock())
        run = SessionRun(session, self._services, self._make_unreachable, self._forget)
        self._admit(run)
        self._metrics.started.inc()
        self._loop.start_task(run.run())

    def _find_voice(self, start: SessionStart) -> SessionStart:
        """Raises ``UnknownVoiceError``, which pieces that were sent after this start are told as well."""
        try:
            return self._services.voices.find(start)
        except UnknownVoiceError as error:
            if start.key is not None:
                self._ended.add(start.key, error)
            raise

    def _refuse_existing(self, key: SessionKey | None) -> None:
        run = self._reachable.get(key) if key is not None else None
        if run is not None:
            if not run.session.reply.is_cancelled():
                raise session_exists()
            run.client_has_gone()

    def _admit(self, run: SessionRun) -> None:
        session = run.session
        if self._refusal is not None:
            raise self._refusal.renewed(None)
        if len(self._open) >= self._config.max_sessions:
            raise sessions_taken(self._config.max_sessions, retry_after_s=self._load.retry_after_s())
        session.reserved_s = reserved_speech_s(session.start, self._load.lengths)
        self._load.admit(self._count_need(run, self._clock()))
        if session.key is not None:
            self._reachable[session.key] = run
            self._ended.discard(session.key)
        self._open[session.port_id] = run
        self._sessions_changed.set()

    # Called by the sessions

    def _make_unreachable(self, run: SessionRun) -> None:
        key = run.session.key
        if key is not None and self._reachable.get(key) is run:
            del self._reachable[key]
            self._ended.add(key, run.session.error)
        self._sessions_changed.set()

    def _forget(self, run: SessionRun) -> None:
        del self._open[run.session.port_id]
        made_s = 0.0 if run.has_failed else run.standing(self._clock()).made_s
        self._load.ended(text_bytes(run.session.start), made_s, run.counted)
        self._sessions_changed.set()

    def watch(self) -> None:
        """One round of the watcher. Blocks."""
        self._loop.run(self._watcher.watch(with_deadlines=True))

    async def _until(self, is_so: Callable[[], bool], timeout_s: float | None) -> None:
        """Wait until the sessions have changed to this, or for ``timeout_s``."""

        async def wait() -> None:
            while not is_so():
                self._sessions_changed.clear()
                await self._sessions_changed.wait()

        with suppress(TimeoutError):
            await asyncio.wait_for(wait(), timeout_s)

    # Read by the metrics, from any thread

    def _session_states(self) -> Counter[str]:
        return Counter(run.session.state.value for run in list(self._open.values()))

    def _deliveries(self) -> int:
        return sum(run.is_delivering for run in list(self._open.values()))

    def _read_load(self) -> float:
        async def load() -> float:
            return self._load.load()

        return self._loop.run(load()) or 0.0

    # Shutdown

    def drain(self, deadline_s: float) -> None:
        """Refuse new sessions, give running ones ``deadline_s`` to finish, then end them with ``ShuttingDownError``. Blocks."""
        self._loop.run(self._drain(deadline_s))

    async def _drain(self, deadline_s: float) -> None:
        if self._refusal is None:
            self._refusal = accepts_no_sessions()
        await self._until(lambda: not self._open, deadline_s)
        left = list(self._open.values())
        if left:
            logger.warning("%d sessions are still running at the drain deadline and are ended", len(left))
        for run in left:
            run.end_early(shut_down())
        await self._until(lambda: not self._open, CLOSE_TIMEOUT_S)
        if self._open:
            logger.error("%d sessions could not be closed: a model does not answer", len(self._open))

    def fail(self, model: str, patience_s: float) -> None:
        """A process of ``model`` has failed, and the server will be restarted: end the sessions that need it at once, the others after
        ``patience_s``, each with ``EngineError``; refuse new ones. model: "" is none. Blocks.

        Calls that are in the dead process never return, so sessions that wait for one are told their end and stay open.
        """
        self._loop.run(self._fail(model, patience_s))

    async def _fail(self, model: str, patience_s: float) -> None:
        self._refusal = EngineError("A model of the server has failed and the server restarts; try again in a few seconds.")
        error = EngineError("A model of the server has failed; start the session again in a few seconds.")
        for run in list(self._open.values()):
            if run.needs(model):
                run.end_early(error)
        await self._until(lambda: all(run.has_failed for run in self._open.values()), patience_s)
        for run in list(self._open.values()):
            run.end_early(error)

    def close(self) -> None:
        """Drain for ``drain_timeout_s``, then stop all threads. Idempotent."""
        self.drain(self._config.drain_timeout_s)
        self._services.voices.close(CLOSE_TIMEOUT_S)
        self._loop.close()
        self._helpers.shutdown()
        self._watcher.close()
