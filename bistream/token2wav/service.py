"""The token2wav service: hops of many sessions in (new speech tokens), waveforms out through futures.

It owns the renderer's state of every session. Any thread may call it; one worker thread does all computing and all
freeing. Ready hops of different sessions are computed together: the next batch forms while one runs, so no hop waits
for a batch to fill. Called by ``local.py`` and the token2wav model of the server. Importing it loads no torch.

Order of service: first hops before later ones (their listeners hear nothing yet), then the earliest deadline, which is
when the listener runs out of audio (``hops.batch_rules``, which also says when a batch gives way to urgent hops). Hops of one session
keep their order; only its oldest one can be in a batch. Whole utterances, and the voices of new sessions whose recording is long, are
computed in steps between the batches (``background``). ``schedule`` puts these together. A session begins with the hop that carries its
voice prompt and ends, everything freed, with its final hop, ``cancel``, an error, or after ``session_idle_timeout_s`` without a hop (a
hop without tokens renews this lease and yields no audio).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bistream.config import RuntimeConfig
from bistream.contract.checks import check_offline_length
from bistream.errors import (
    BistreamError,
    BusyError,
    CancelledError,
    EngineError,
    InvalidInputError,
    SessionExistsError,
    ShuttingDownError,
    UnknownSessionError,
)
from bistream.gpu.claims import LOOK_S, GpuClaims
from bistream.hops.batch_rules import FIRST_TOKENS_PER_S, LONG_BATCH_S, MAX_BATCH_HOPS, BatchRules
from bistream.hops.queue import BatchPace
from bistream.metrics.recorder import Recorder
from bistream.token2wav.background import OfflineJob, Work
from bistream.token2wav.capacity import CapacityMeter
from bistream.token2wav.computing import Computing, HopBatch
from bistream.token2wav.factory import load_renderer
from bistream.token2wav.hop_jobs import AudioSession, HopJob, Token2WavHop, check_hop, check_prompt, check_speed, running_future, settle
from bistream.token2wav.hop_metrics import HopMetrics
from bistream.token2wav.load_report import LoadReport
from bistream.token2wav.marking import Marking
from bistream.token2wav.renderer import FLOW_PAGES, PoolUse, RendererSizes, SpeechRenderer
from bistream.token2wav.schedule import NextAction, Schedule
from bistream.types import AudioOptions, FloatArray, VoicePrompt

if TYPE_CHECKING:
    from bistream.gpu.tier import TierChoice

__all__ = ["Token2Wav", "Token2WavHop"]

logger = logging.getLogger(__name__)

Failures = list[tuple[Future[FloatArray], BistreamError]]


class Token2Wav:
    """See the module. No method raises; errors are set on the futures, always as a ``BistreamError``."""

    def __init__(
        self,
        config: RuntimeConfig,
        clock: Callable[[], float] = time.monotonic,
        renderer: SpeechRenderer | None = None,
        recorder: Recorder | None = None,
        gpu_claims: GpuClaims | None = None,
    ) -> None:
        """Load a renderer (``ConfigError``, ``CheckpointError``) unless one is given, and start the worker.

        recorder: takes the metrics. gpu_claims: claimed while hops are urgent, asked where none is; closed with the service.
        """
        self._config = config
        self._clock = clock
        self._renderer = renderer or load_renderer(config)
        self._condition = threading.Condition()
        self._sessions: dict[str, AudioSession] = {}
        self._ended: list[AudioSession] = []  # waiting for the worker to free them
        max_hops = MAX_BATCH_HOPS if self._renderer.sizes.shares_batches else 1
        self._capacity = CapacityMeter(LONG_BATCH_S, max_hops, config.capacity_audio_s_per_s)
        metrics = HopMetrics(
            recorder or Recorder(),
            lambda: len(self._schedule.queue),
            lambda: self._renderer.pools,
            lambda: self._capacity.audio_s_per_s,
        )
        pace = BatchPace(FIRST_TOKENS_PER_S)
        self._marking = Marking.load(config, self._renderer.sizes)
        self._computing = Computing(self._renderer, clock, self._capacity, pace, self._marking, metrics.batch)  # used by the worker only
        self._claims = gpu_claims or GpuClaims()
        rules = BatchRules(pace, max_hops)
        self._schedule = Schedule(rules, self._computing.share, metrics.decided, self._claims.waits)
        self._next_expiry_s = -math.inf  # no lease expires earlier
        self._refusal: BistreamError | None = None  # of every new session: the service drains, or its worker has failed
        self._is_stopping = False
        self._worker = threading.Thread(target=self._work, name="bistream-token2wav", daemon=True)
        self._worker.start()

    def hop(self, hop: Token2WavHop) -> Future[FloatArray]:
        """Waveform of these tokens, float32 [N], N possibly 0. After the final hop all samples of all tokens have been returned.

        Errors that leave the session unchanged: ``InvalidInputError`` (tokens, prompt, a hop after the final one),
        ``UnknownSessionError``, ``SessionExistsError``, ``BusyError``, ``ShuttingDownError``. Any other error ends it.
        """
        future = running_future()
        try:
            check_hop(self._renderer, hop)
            with self._locked() as failures:
                self._end_idle_sessions(failures)
                session = self._session_of(hop)
                job = HopJob(session, hop, session.received_tokens == 0, self._clock() + hop.playback_buffer_s, future)
                session.is_finalizing = hop.finalize
                session.received_tokens += len(hop.token_ids)
                session.jobs.append(job)
                if len(session.jobs) == 1:
                    self._schedule.enqueue(job)
                self._claim_gpu(releases=False)
        except BistreamError as error:
            error.session_id = hop.session_id
            settle(future, error)
        return future

    def synthesize(
        self,
        token_ids: Sequence[int],
        prompt: VoicePrompt,
        audio: AudioOptions = AudioOptions(),  # noqa: B008  (it is frozen)
        speed: float = 1.0,
        session_id: str | None = None,
    ) -> Future[FloatArray]:
        """A whole utterance at once with full attention, float32 [samples per frame * floor(frames / speed)]. Errors as in ``hop``.

        session_id: by which ``cancel`` ends it.
        """
        future = running_future()
        try:
            tokens = self._renderer.check_tokens(token_ids)
            if not tokens:
                raise InvalidInputError("There are no speech tokens; send at least one.")
            check_offline_length(len(tokens), self._config.max_offline_tokens, self._renderer.sizes.tokens_per_second)
            self._renderer.check_length(len(prompt.speech_tokens) + len(tokens))
            check_speed(self._renderer, speed)
            check_prompt(self._renderer, prompt)
            self._marking.check(audio)
            with self._locked() as failures:
                self._end_idle_sessions(failures)
                self._admit_utterance(session_id)
                self._schedule.background.add_utterance(OfflineJob(tokens, prompt, audio, speed, future, session_id))
        except BistreamError as error:
            error.session_id = session_id
            settle(future, error)
        return future

    @property
    def healthy(self) -> bool:
        """False when only restarting the process can help."""
        return self._renderer.healthy and (self._worker.is_alive() or self._is_stopping)

    @property
    def sizes(self) -> RendererSizes:
        """Rates and sizes that a voice prompt must match."""
        return self._renderer.sizes

    @property
    def tiers(self) -> tuple[TierChoice, ...]:
        """The tier of each network."""
        return self._renderer.tiers

    def report(self) -> LoadReport:
        """For the front models; a new object each time."""
        flow = self._renderer.pools.get(FLOW_PAGES, PoolUse(0, 0))
        return LoadReport(self._capacity.audio_s_per_s, flow.total, flow.reserve, flow.most, self._renderer.sizes.chunks_join)

    def cancel(self, session_id: str) -> None:
        """End a session or an utterance now with ``CancelledError``; its memory is freed after what is running. Ignores unknown ids."""
        error = CancelledError("The session was cancelled.")
        with self._locked() as failures:
            if (session := self._sessions.get(session_id)) is not None:
                self._end(session, error, failures)
            failures.extend((job.future, error.renewed(session_id)) for job in self._schedule.background.drop_utterances(session_id))

    def close(self) -> None:
        """Accept no new sessions, give the live ones ``drain_timeout_s`` to finish, fail the rest, free everything. Idempotent."""
        error = ShuttingDownError("The server is shutting down; try again on another one.")
        with self._locked() as failures:
            self._refusal = self._refusal or error
            self._condition.wait_for(
                lambda: not self._sessions and not self._schedule.background.utterances, timeout=self._config.drain_timeout_s
            )
            self._is_stopping = True
            for session in list(self._sessions.values()):
                self._end(session, error, failures)
            failures.extend((job.future, error.renewed(job.session_id)) for job in self._schedule.background.drop_utterances())
        self._worker.join()
        self._claims.close()

    @property
    def live_sessions(self) -> int:
        """Sessions that count against ``max_sessions``, offline jobs included."""
        with self._condition:
            return len(self._sessions) + self._schedule.background.utterances

    # With the condition held

    @contextmanager
    def _locked(self) -> Iterator[Failures]:
        """Hold the condition. Failed futures are resolved after its release: their callbacks may take other locks."""
        failures: Failures = []
        try:
            with self._condition:
                yield failures
                self._condition.notify_all()
        finally:
            for future, error in failures:
                settle(future, error)

    def _session_of(self, hop: Token2WavHop) -> AudioSession:
        """The live session of a hop, created if the hop is its first."""
        session = self._sessions.get(hop.session_id)
        if session is not None:
            if session.is_finalizing:
                raise InvalidInputError("The session already had its final hop; start another session.")
            if hop.prompt is not None:
                raise SessionExistsError("A live session has this id; send the voice prompt with its first hop only, or choose another id.")
            return session
        if self._schedule.background.has_utterance(hop.session_id):
            raise SessionExistsError("An utterance has this id; choose another id.")
        if hop.prompt is None:
            raise UnknownSessionError("No live session has this id (ended or never started); begin with a hop that carries a voice prompt.")
        check_prompt(self._renderer, hop.prompt)
        self._marking.check(hop.audio)
        self._renderer.check_length(len(hop.prompt.speech_tokens) + len(hop.token_ids))
        self._admit()
        session = AudioSession(hop.session_id, hop.prompt, hop.audio, self._clock(), hop.expected_speech_s)
        self._sessions[hop.session_id] = session
        return session

    def _admit(self) -> None:
        if self._refusal is not None:
            raise self._refusal.renewed(None)
        if len(self._sessions) + self._schedule.background.utterances >= self._config.max_sessions:
            raise BusyError(f"All {self._config.max_sessions} sessions are in use; try again later.")

    def _admit_utterance(self, session_id: str | None) -> None:
        if session_id is not None and (session_id in self._sessions or self._schedule.background.has_utterance(session_id)):
            raise SessionExistsError("A live session has this id; choose another id.")
        self._admit()
        if self._schedule.background.utterances >= self._config.max_offline_jobs:
            raise BusyError(f"{self._config.max_offline_jobs} whole utterances are waiting already; try again later.")

    def _end(self, session: AudioSession, error: BistreamError | None, failures: Failures) -> None:
        """Make a session unreachable, fail its pending jobs (without any, error may be None) and have the worker free it. Idempotent."""
        if session.has_ended:
            return
        session.has_ended = True
        del self._sessions[session.session_id]
        self._ended.append(session)
        for job in session.jobs:
            assert error is not None
            self._schedule.discard(job)
            failures.append((job.future, error.renewed(session.session_id)))
        session.jobs.clear()

    def _end_idle_sessions(self, failures: Failures) -> None:
        """Scans the sessions only when a lease may have expired: every hop calls this, and hundreds may be open."""
        now = self._clock()
        if now < self._next_expiry_s:
            return
        timeout = self._config.session_idle_timeout_s
        for session in [session for session in self._sessions.values() if not session.jobs]:
            if session.last_active_s <= now - timeout:
                logger.info("session %s was idle for too long, closing it", session.session_id)
                self._end(session, None, failures)
        idle = (session.last_active_s for session in self._sessions.values() if not session.jobs)
        self._next_expiry_s = min(idle, default=now) + timeout  # leases begun or renewed later expire later

    def _claim_gpu(self, releases: bool) -> None:
        """While urgent hops wait, and while a batch that took them is computed. releases: if none wait; no such batch is in progress."""
        if self._schedule.is_urgent(self._clock()):
            self._claims.claim()
        elif releases:
            self._claims.release()

    def _seconds_to_expiry(self) -> float | None:
        """None without sessions."""
        return max(0.0, self._next_expiry_s - self._clock()) if self._sessions else None

    # The worker

    def _work(self) -> None:
        """A bug ends the worker; then nobody waits for ever, and ``healthy`` says that only a restart helps."""
        try:
            self._serve()
        except Exception:
            logger.exception("the worker failed")
            error = EngineError("The speech renderer failed; try again later.")
            with self._locked() as failures:
                self._refusal = error
                for session in list(self._sessions.values()):
                    self._end(session, error, failures)
                failures.extend((job.future, error.renewed(job.session_id)) for job in self._schedule.background.drop_utterances())

    def _serve(self) -> None:
        schedule = self._schedule
        while True:
            with self._locked() as failures:
                self._claim_gpu(releases=True)
                self._condition.wait_for(lambda: self._ended or schedule.has_work or self._is_stopping, self._seconds_to_expiry())
                self._end_idle_sessions(failures)
                ended = [session for session in self._ended if not schedule.is_computing(session)]
                self._ended = [session for session in self._ended if schedule.is_computing(session)]
                self._claim_gpu(releases=False)
                turn = schedule.next(self._clock())
                is_over = self._is_stopping and not ended and not self._ended and turn.is_empty
            for session in ended:
                session.close()
            if is_over:
                return
            if turn.waits:
                self._wait_for_others()
            elif turn.work is not None:
                self._step(turn.work, turn.hops_wait)
            elif turn.resumes is not None:
                self._continue(turn.resumes)
            elif turn.hops:
                self._begin(turn)

    def _wait_for_others(self) -> None:
        """A moment, or until something comes."""
        began_s = self._clock()
        with self._condition:
            self._condition.wait(LOOK_S)
        self._computing.waited(self._clock() - began_s)

    def _begin(self, turn: NextAction) -> None:
        self._claims.works()
        schedule = self._schedule
        batch = self._computing.begin(turn.hops, turn.leftover, is_alone=schedule.started is None)
        with self._locked():
            for job in batch.preparing:
                schedule.background.add_voice(job)
            schedule.postpone(batch.postponed)
            is_in_progress = schedule.begun(batch, self._clock())
        if is_in_progress:
            self._send(batch)
            self._continue(batch)
        else:
            self._finish(batch)

    def _continue(self, batch: HopBatch) -> None:
        """One step of the batch in progress."""
        self._claims.works()
        self._computing.step(batch)
        assert batch.standing is not None
        if not batch.standing.steps_left:
            with self._locked():
                self._schedule.ended(batch)
            self._finish(batch)

    def _finish(self, batch: HopBatch) -> None:
        self._computing.finish(batch, is_alone=self._schedule.started is None)
        self._send(batch)

    def _send(self, batch: HopBatch) -> None:
        answers, batch.answers = batch.answers, []
        for job, outcome in answers:
            self._answer(job, outcome)

    def _step(self, work: Work, hops_wait: bool) -> None:
        is_done, outcome = self._computing.background_step(work, hops_wait)
        with self._locked():
            background = self._schedule.background
            if not is_done:
                background.put_back(work)
                return
            background.remove(work)
            if isinstance(work, HopJob) and not work.is_over:
                self._schedule.enqueue(work)
        if isinstance(work, OfflineJob) and outcome is not None:
            settle(work.future, outcome)

    def _answer(self, job: HopJob, outcome: FloatArray | BistreamError) -> None:
        session = job.session
        with self._locked() as failures:
            if session.has_ended:  # cancelled meanwhile; its futures are resolved
                return
            if isinstance(outcome, BistreamError):
                self._end(session, outcome, failures)
                return
            session.jobs.popleft()
            session.last_active_s = self._clock()
            if session.jobs:
                self._schedule.enqueue(session.jobs[0])
            elif job.hop.finalize:
                self._end(session, None, failures)
        settle(job.future, outcome)
