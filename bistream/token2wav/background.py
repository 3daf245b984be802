"""Work of token2wav that has no deadline, and when it gets a turn. No torch.

Two kinds: whole utterances (offline), and the voices of new sessions whose recording is long. Both are computed in steps of
milliseconds, so that no hop waits longer than one step for either. Hops go first; a step runs

- whenever no hop waits, and
- while hops wait, as often as keeps the background at ``SHARE`` of the computing time: without it, a server whose listeners take
  all its time would never finish an utterance, and never begin a session with a new voice.

Work takes turns step by step: a long voice does not hold up a short one, nor new voices an utterance. One utterance is computed at
a time, in order of arrival; the others hold tokens only.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

from bistream.token2wav.hop_jobs import HopJob
from bistream.token2wav.renderer import Outcome, SpeechRenderer, Utterance
from bistream.types import AudioOptions, FloatArray, VoicePrompt

SHARE = 0.2  # of the computing time while hops wait
MAX_CREDIT_S = 0.05  # of background time saved up: the longest run of steps that a hop may have to wait for


class BackgroundShare:
    """Decides between hops and the background from how long each took. Pure: the caller measures.

    The credit grows with the time that hops take, up to a bound, and pays for steps that run while hops wait. A step longer than
    the credit is a debt, which the next hops repay.
    """

    def __init__(self) -> None:
        self._credit_s = 0.0

    def is_due(self, hops_wait: bool) -> bool:
        """Whether the next turn is the background's, which has work."""
        return not hops_wait or self._credit_s > 0.0

    def hops_took(self, seconds: float) -> None:
        self._credit_s = min(MAX_CREDIT_S, self._credit_s + seconds * SHARE / (1.0 - SHARE))

    def step_took(self, seconds: float, hops_waited: bool) -> None:
        """hops_waited: when the step began."""
        if hops_waited:
            self._credit_s -= seconds


@dataclass(eq=False)
class OfflineJob:
    """A whole utterance. session_id: by which it can be cancelled."""

    token_ids: list[int]
    prompt: VoicePrompt
    audio: AudioOptions
    speed: float
    future: Future[FloatArray]
    session_id: str | None = None
    utterance: Utterance | None = None  # from its first step on
    is_dropped: bool = False  # its future may be resolved a moment later, without the lock

    @property
    def is_over(self) -> bool:
        return self.is_dropped or self.future.done()

    def step(self, renderer: SpeechRenderer) -> Outcome | None:
        """One step; the outcome with the last one."""
        utterance = self.utterance  # which a cancel may take away meanwhile
        if utterance is None:
            utterance = self.utterance = renderer.begin_utterance(self.token_ids, self.prompt, self.audio.seed, self.speed)
        return next(utterance)


Work = OfflineJob | HopJob  # a session's first hop waits for the state of its voice; ``session`` has a rendering


class Background:
    """The work that waits, and that which is taken. Not thread-safe: used with the service's condition held."""

    def __init__(self) -> None:
        self._turns: deque[Work] = deque()  # the next one first; at most one utterance, or none while its step runs
        self._utterances: deque[OfflineJob] = deque()  # all, the one in progress first

    def __len__(self) -> int:
        """Work that waits for a step."""
        return len(self._turns)

    @property
    def utterances(self) -> int:
        """Waiting and in progress."""
        return len(self._utterances)

    def add_voice(self, job: HopJob) -> None:
        self._turns.append(job)

    def add_utterance(self, job: OfflineJob) -> None:
        self._utterances.append(job)
        if len(self._utterances) == 1:
            self._turns.append(job)

    def take(self) -> Work | None:
        """The work whose turn it is; ``put_back`` or ``remove`` it after its step."""
        while self._turns:
            work = self._turns.popleft()
            if not work.is_over:
                return work
            self.remove(work)
        return None

    def put_back(self, work: Work) -> None:
        """Its step is done, and more are left."""
        if work.is_over:
            self.remove(work)
        else:
            self._turns.append(work)

    def remove(self, work: Work) -> None:
        """It is done, or over. Idempotent."""
        if work in self._turns:
            self._turns.remove(work)
        if not isinstance(work, OfflineJob) or work not in self._utterances:
            return
        was_in_progress = work is self._utterances[0]
        self._utterances.remove(work)
        work.utterance = None
        if was_in_progress and self._utterances:
            self._turns.append(self._utterances[0])

    def has_utterance(self, session_id: str) -> bool:
        return any(job.session_id == session_id for job in self._utterances)

    def drop_utterances(self, session_id: str | None = None) -> list[OfflineJob]:
        """Remove those of a session, or all. Their futures are left to the caller."""
        dropped = [job for job in self._utterances if session_id in (None, job.session_id)]
        for job in dropped:
            job.is_dropped = True
            self.remove(job)
        return dropped
