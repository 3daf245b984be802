"""The token2wav service: hops of many sessions in (new speech tokens), waveforms out through futures.

It owns the renderer's state of every session. Any thread may call it; one worker thread does all computing and all
freeing. Ready hops of different sessions are computed together: the next batch forms while one runs, so no hop waits
for a batch to fill. Called by ``local.py`` and the token2wav model of the server. Importing it loads no torch.

Order of service: first hops before later ones (their listeners hear nothing yet), then the earliest deadline, which is
when the listener runs out of audio. Hops of one session keep their order; only its oldest one can be in a batch.

A session begins with the hop that carries its voice prompt and ends, everything freed, with its final hop, ``cancel``, an
error, or after ``session_idle_timeout_s`` without a hop (a hop without tokens renews this lease and yields no audio).
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

import numpy as np

from bistream.config import RuntimeConfig
from bistream.errors import (
    BistreamError,
    BusyError,
    CancelledError,
    InvalidInputError,
    SessionExistsError,
    ShuttingDownError,
    UnknownSessionError,
)
from bistream.limits import check_speed
from bistream.token2wav.factory import load_renderer
from bistream.token2wav.hop_jobs import AudioSession, BatchPace, HopJob, HopQueue, OfflineJob, Token2WavHop, render, settle
from bistream.token2wav.renderer import RendererSizes, SpeechRenderer
from bistream.types import FloatArray, VoicePrompt

if TYPE_CHECKING:
    from bistream.gpu.tier import TierChoice

__all__ = ["Token2Wav", "Token2WavHop"]

logger = logging.getLogger(__name__)

MAX_BATCH_HOPS = 64
TARGET_BATCH_S = 0.15  # intended duration of a batch, for which every new hop has to wait (orchestration/test_hop_policy.py)
FIRST_TOKENS_PER_S = 500.0  # pace assumed before the first measurement
OFFLINE_PATIENCE_S = 2.0  # an offline job is served as if its listener had this much audio left

Failures = list[tuple[Future[FloatArray], BistreamError]]


class Token2Wav:
    """See the module. No method raises; errors are set on the futures, always as a ``BistreamError``."""

    def __init__(self, config: RuntimeConfig, clock: Callable[[], float] = time.monotonic, renderer: SpeechRenderer | None = None) -> None:
        """Load a renderer (``ConfigError``, ``CheckpointError``) unless one is given, and start the worker."""
        self._config = config
        self._clock = clock
        self._renderer = renderer or load_renderer(config)
        self._condition = threading.Condition()
        self._sessions: dict[str, AudioSession] = {}
        self._ended: list[AudioSession] = []  # waiting for the worker to free them
        self._queue: HopQueue[HopJob | OfflineJob] = HopQueue()
        self._pace = BatchPace(TARGET_BATCH_S, FIRST_TOKENS_PER_S)  # used by the worker only
        self._offline: set[OfflineJob] = set()  # waiting or being computed
        self._next_expiry_s = -math.inf  # no lease expires earlier
        self._is_draining = False
        self._is_stopping = False
        self._worker = threading.Thread(target=self._serve, name="bistream-token2wav", daemon=True)
        self._worker.start()

    def hop(self, hop: Token2WavHop) -> Future[FloatArray]:
        """Waveform of these tokens, float32 [N], N possibly 0. After the final hop all samples of all tokens have been returned.

        Errors that leave the session unchanged: ``InvalidInputError`` (tokens, prompt, more than 300 s, a hop after the final one),
        ``UnknownSessionError``, ``SessionExistsError``, ``BusyError``, ``ShuttingDownError``. Any other error ends it.
        """
        future = _running_future()
        try:
            self._renderer.check_tokens(hop.token_ids)
            if not (math.isfinite(hop.playback_buffer_s) and hop.playback_buffer_s >= 0):
                raise InvalidInputError(f"playback_buffer_s is {hop.playback_buffer_s}; send the seconds of audio left, 0 or more.")
            with self._locked() as failures:
                self._end_idle_sessions(failures)
                session = self._session_of(hop)
                job = HopJob(session, hop, session.received_tokens == 0, self._clock() + hop.playback_buffer_s, future)
                session.is_finalizing = hop.finalize
                session.received_tokens += len(hop.token_ids)
                session.jobs.append(job)
                if len(session.jobs) == 1:
                    self._enqueue(job)
        except BistreamError as error:
            error.session_id = hop.session_id
            settle(future, error)
        return future

    def synthesize(self, token_ids: Sequence[int], prompt: VoicePrompt, seed: int = 0, speed: float = 1.0) -> Future[FloatArray]:
        """A whole utterance at once with full attention, float32 [samples per frame * floor(frames / speed)]. Errors as in ``hop``."""
        future = _running_future()
        try:
            tokens = self._renderer.check_tokens(token_ids)
            if not tokens:
                raise InvalidInputError("There are no speech tokens; send at least one.")
            check_speed(speed)
            self._check_prompt(prompt)
            job = OfflineJob(tokens, prompt, seed, speed, future)
            with self._locked() as failures:
                self._end_idle_sessions(failures)
                self._admit()
                self._offline.add(job)
                self._queue.push(job, is_first=False, deadline_s=self._clock() + OFFLINE_PATIENCE_S, tokens=len(tokens))
        except BistreamError as error:
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

    def cancel(self, session_id: str) -> None:
        """End a session now; its hops fail with ``CancelledError``, its memory is freed after the running batch. Ignores unknown ids."""
        with self._locked() as failures:
            session = self._sessions.get(session_id)
            if session is not None:
                self._end(session, CancelledError("The session was cancelled."), failures)

    def close(self) -> None:
        """Accept no new sessions, give the live ones ``drain_timeout_s`` to finish, fail the rest, free everything. Idempotent."""
        error = ShuttingDownError("The server is shutting down; try again on another one.")
        with self._locked() as failures:
            self._is_draining = True
            self._condition.wait_for(lambda: not self._sessions and not self._offline, timeout=self._config.drain_timeout_s)
            self._is_stopping = True
            for session in list(self._sessions.values()):
                self._end(session, error, failures)
            failures.extend((job.future, error) for job in self._offline)
            self._offline.clear()
        self._worker.join()

    @property
    def live_sessions(self) -> int:
        """Sessions that count against ``max_sessions``, offline jobs included."""
        with self._condition:
            return len(self._sessions) + len(self._offline)

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
            self._renderer.check_length(session.num_tokens + len(hop.token_ids))
            return session
        if hop.prompt is None:
            raise UnknownSessionError("No live session has this id (ended or never started); begin with a hop that carries a voice prompt.")
        self._check_prompt(hop.prompt)
        self._renderer.check_length(len(hop.prompt.speech_tokens) + len(hop.token_ids))
        self._admit()
        session = AudioSession(hop.session_id, hop.prompt, hop.seed, self._clock())
        self._sessions[hop.session_id] = session
        return session

    def _admit(self) -> None:
        if self._is_draining:
            raise ShuttingDownError("The server is shutting down; try again on another one.")
        if len(self._sessions) + len(self._offline) >= self._config.max_sessions:
            raise BusyError(f"All {self._config.max_sessions} sessions are in use; try again later.")

    def _check_prompt(self, prompt: VoicePrompt) -> None:
        if prompt.speech_tokens.ndim != 1:
            raise InvalidInputError(f"prompt_speech_tokens has shape {list(prompt.speech_tokens.shape)}; it must be one-dimensional.")
        self._renderer.check_prompt(prompt)
        for name, values in (("prompt_speech_feat", prompt.speech_feat), ("prompt_spk_embedding", prompt.speaker_embedding)):
            if not np.isfinite(values).all():
                raise InvalidInputError(f"{name} contains NaN or infinity; check the reference recording.")

    def _enqueue(self, job: HopJob) -> None:
        self._queue.push(job, is_first=job.is_first, deadline_s=job.deadline_s, tokens=len(job.hop.token_ids))

    def _end(self, session: AudioSession, error: BistreamError | None, failures: Failures) -> None:
        """Make a session unreachable, fail its pending jobs (without any, error may be None) and have the worker free it. Idempotent."""
        if session.has_ended:
            return
        session.has_ended = True
        del self._sessions[session.session_id]
        self._ended.append(session)
        for job in session.jobs:
            assert error is not None
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

    def _seconds_to_expiry(self) -> float | None:
        """Until a lease may expire; None without sessions."""
        return max(0.0, self._next_expiry_s - self._clock()) if self._sessions else None

    # The worker

    def _serve(self) -> None:
        while True:
            with self._locked() as failures:
                self._condition.wait_for(lambda: self._ended or self._queue or self._is_stopping, timeout=self._seconds_to_expiry())
                self._end_idle_sessions(failures)
                ended, self._ended = self._ended, []
                jobs = self._queue.pop_batch(MAX_BATCH_HOPS, self._pace.max_tokens)
                is_over = self._is_stopping and not ended and not jobs
            for session in ended:
                session.close()
            if is_over:
                return
            self._compute(jobs)

    def _compute(self, jobs: Sequence[HopJob | OfflineJob]) -> None:
        hops = [job for job in jobs if isinstance(job, HopJob) and not job.session.has_ended]
        if hops:
            began_s = self._clock()
            outcomes = render(self._renderer, hops)
            tokens = sum(len(job.hop.token_ids) for job in hops)
            self._pace.observe(tokens, took_s := self._clock() - began_s)
            logger.debug("%d hops, %d tokens: %.1f ms, %d waiting", len(hops), tokens, 1000 * took_s, len(self._queue))
            for job, outcome in zip(hops, outcomes, strict=True):
                self._answer(job, outcome)
        offline = [job for job in jobs if isinstance(job, OfflineJob) and not job.future.done()]
        if offline:
            result = self._renderer.synthesize(offline[0].token_ids, offline[0].prompt, offline[0].seed, offline[0].speed)
            with self._locked():
                self._offline.discard(offline[0])
                for waiting in offline[1:]:  # one at a time: hops that arrived meanwhile may be more urgent
                    self._queue.push(waiting, is_first=False, deadline_s=self._clock(), tokens=len(waiting.token_ids))
            settle(offline[0].future, result)

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
                self._enqueue(session.jobs[0])
            elif job.hop.finalize:
                self._end(session, None, failures)
        settle(job.future, outcome)


def _running_future() -> Future[FloatArray]:
    """A future that its receiver cannot cancel; ``Token2Wav.cancel`` does."""
    future: Future[FloatArray] = Future()
    future.set_running_or_notify_cancel()
    return future
