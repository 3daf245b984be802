"""Sessions and jobs of the token2wav service, and the order in which jobs are served. No torch.

Used by ``service``, which decides what is accepted and when it runs.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from bistream.errors import BistreamError
from bistream.token2wav.renderer import Outcome, RendererHop, Rendering, SpeechRenderer
from bistream.types import FloatArray, VoicePrompt

T = TypeVar("T")


@dataclass(frozen=True)
class Token2WavHop:
    """New speech tokens of one session. prompt and seed are used in the first hop only, which must carry a prompt.

    playback_buffer_s: audio the listener has left; the session with the least is served first.
    """

    session_id: str
    token_ids: tuple[int, ...]
    finalize: bool
    prompt: VoicePrompt | None = None
    seed: int = 0
    playback_buffer_s: float = 0.0


class HopQueue(Generic[T]):
    """First hops before later ones, then the earliest deadline, then the order of arrival."""

    def __init__(self) -> None:
        self._heap: list[tuple[bool, float, int, int, T]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, item: T, *, is_first: bool, deadline_s: float, tokens: int) -> None:
        self._arrivals += 1
        heapq.heappush(self._heap, (not is_first, deadline_s, self._arrivals, tokens, item))

    def pop_batch(self, max_items: int, max_tokens: float) -> list[T]:
        """The most urgent items, in order, within both limits; at least one unless the queue is empty."""
        batch: list[T] = []
        tokens = 0
        while self._heap and len(batch) < max_items:
            tokens += self._heap[0][-2]
            if batch and tokens > max_tokens:
                break
            batch.append(heapq.heappop(self._heap)[-1])
        return batch


class BatchPace:
    """How many tokens fit into a batch of about ``target_s``, estimated from past batches.

    Without a bound, every ready hop would join the next batch, the order of service would have no effect, and a session about to
    underrun would wait for all the others. A bound in time adapts the batch size to the speed of the device.
    """

    def __init__(self, target_s: float, tokens_per_s: float) -> None:
        self.target_s = target_s
        self._tokens_per_s = tokens_per_s

    @property
    def max_tokens(self) -> float:
        return self.target_s * self._tokens_per_s

    def observe(self, tokens: int, seconds: float) -> None:
        """Record the duration of a batch; recent batches weigh most."""
        if tokens > 0 and seconds > 0:
            self._tokens_per_s += (tokens / seconds - self._tokens_per_s) / 4


@dataclass(eq=False)
class AudioSession:
    """The service's state of one session.

    jobs: accepted and not yet answered, oldest first; the oldest one is in the queue or being computed.
    """

    session_id: str
    prompt: VoicePrompt
    seed: int
    last_active_s: float
    jobs: deque[HopJob] = field(default_factory=deque)
    received_tokens: int = 0
    is_finalizing: bool = False  # its final hop was accepted
    has_ended: bool = False  # unreachable; the worker frees it
    rendering: Rendering | None = None  # from its first hop on

    @property
    def num_tokens(self) -> int:
        """Prompt included."""
        return len(self.prompt.speech_tokens) + self.received_tokens

    def close(self) -> None:
        """Free the renderer's state. Idempotent; on the worker thread only."""
        if self.rendering is not None:
            self.rendering.close()
        self.rendering = None


@dataclass(eq=False)
class HopJob:
    session: AudioSession
    hop: Token2WavHop
    is_first: bool
    deadline_s: float
    future: Future[FloatArray]

    @property
    def needs_computing(self) -> bool:
        """False for a lease renewal and for the end of a session that never received a token."""
        return bool(self.hop.token_ids) or (self.hop.finalize and self.session.received_tokens > 0)


@dataclass(eq=False)
class OfflineJob:
    token_ids: list[int]
    prompt: VoicePrompt
    seed: int
    speed: float
    future: Future[FloatArray]


def render(renderer: SpeechRenderer, jobs: Sequence[HopJob]) -> list[Outcome]:
    """Open new sessions, compute all hops together and return the outcome of each job; a session occurs at most once."""
    outcomes: list[Outcome] = [np.zeros(0, np.float32)] * len(jobs)
    working: list[int] = []
    hops: list[RendererHop] = []
    for index, job in enumerate(jobs):
        try:
            rendering = job.session.rendering or renderer.open(job.session.prompt, job.session.seed)
        except BistreamError as error:
            outcomes[index] = error
            continue
        job.session.rendering = rendering
        if job.needs_computing:
            working.append(index)
            hops.append(RendererHop(rendering, job.hop.token_ids, job.hop.finalize))
    for index, outcome in zip(working, renderer.hop(hops) if hops else [], strict=True):
        outcomes[index] = outcome
    return outcomes


def settle(future: Future[FloatArray], outcome: FloatArray | BistreamError) -> None:
    """Resolve a future unless a cancel did so while its job was being computed."""
    with suppress(InvalidStateError):
        if isinstance(outcome, BistreamError):
            future.set_exception(outcome.renewed(outcome.session_id))
        else:
            future.set_result(outcome)
