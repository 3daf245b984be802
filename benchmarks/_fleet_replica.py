"""One replica of the fleet simulation: how long each part of a session takes there, from measurements on one H200.

A start waits for the orchestrator, which takes one at a time; then the language model makes the first tokens; then token2wav computes
hops of many sessions in batches, first hops first, then by the deadline of their listeners.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bistream.rates import CHUNK_TOKENS, SPEECH_TOKENS_PER_SECOND

TOKEN_S = 1 / SPEECH_TOKENS_PER_SECOND
FIRST_TOKENS, LOOKAHEAD_TOKENS, MIN_TOKENS, MAX_TOKENS = 18, 3, 10, 100  # the hop policy before its hops ended on the chunk grid
MAX_BATCH_HOPS, TARGET_BATCH_S = 64, 0.15  # token2wav/service.py, token2wav/computing.py


def interpolate(points: Sequence[tuple[float, float]], at: float) -> float:
    """Linear between the points, constant before the first and beyond the last."""
    if at <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in zip(points, points[1:], strict=False):
        if at <= right:
            return low + (high - low) * (at - left) / (right - left)
    return points[-1][1]


@dataclass(frozen=True)
class ServiceTimes:
    """Seconds. The defaults are of one H200, tier kernels, full-size random weights, with the language model beside token2wav.

    start_s: one start in the orchestrator ("About 140 sessions begin per second, however many wait", docs/log.md).
    tokens_s, transit_s: mean stages ``tokens``, and ``send`` with ``hop.between_processes``, by the number of callers
    (benchmarks/results/first-audio-h200.json).
    batch_s: a batch of token2wav by its chunks of 25 tokens: 17 ms alone (there), 66 ms with 500 tokens, 108 ms with 1700 (docs/log.md),
    beyond that 1.23 ms for each chunk (64 steady hops in 78 ms, benchmarks/results/token2wav-h200.json).
    first_hop_chunks: what a first hop counts (66 over 78 ms, there).
    """

    start_s: float = 1 / 140
    tokens_s: tuple[tuple[float, float], ...] = ((1, 0.0138), (16, 0.0251), (64, 0.0405), (128, 0.0560), (256, 0.0618))
    transit_s: tuple[tuple[float, float], ...] = ((1, 0.0029), (16, 0.0051), (64, 0.0092), (128, 0.0150), (256, 0.0188))
    batch_s: tuple[tuple[float, float], ...] = ((1, 0.017), (20, 0.066), (68, 0.108), (256, 0.340))
    first_hop_chunks: float = 0.84

    def batch(self, chunks: float) -> float:
        return interpolate(self.batch_s, chunks)

    def chunks(self, session: Session, tokens: int) -> float:
        """The hop after the first computes 12 tokens again, on average: from the boundary before it."""
        if session.sent == 0:
            return self.first_hop_chunks
        return (tokens + (CHUNK_TOKENS // 2 if session.sent <= FIRST_TOKENS else 0)) / CHUNK_TOKENS


@dataclass(eq=False, slots=True)
class Session:
    """One reply. asked_at_s: when its caller first wanted it, refusals before included."""

    caller: int
    replica: int
    asked_at_s: float
    started_at_s: float
    total: int  # speech tokens
    begun_at_s: float = 0.0  # the orchestrator has begun it
    tokens_s: float = 0.0  # of the first hop
    sent: int = 0
    first_audio_at_s: float | None = None
    audio_ends_at_s: float = 0.0
    silent_s: float = 0.0

    def next_tokens(self, now_s: float) -> int:
        """Of the next hop: as much as the listener has left, within the bounds of the hop policy."""
        if self.sent == 0:
            return min(FIRST_TOKENS, self.total)
        buffered = int((self.audio_ends_at_s - now_s) * SPEECH_TOKENS_PER_SECOND)
        return min(self.total - self.sent, max(MIN_TOKENS, min(MAX_TOKENS, buffered)))

    def ready_at_s(self, tokens: int, speech_per_text_s: float) -> float:
        """When text and language model suffice for that many more tokens. speech_per_text_s: 0: all text is there at the start."""
        wanted = self.sent + tokens
        text_s = wanted * TOKEN_S / speech_per_text_s if speech_per_text_s else 0.0
        return max(self.begun_at_s + self.tokens_s * wanted / FIRST_TOKENS, self.started_at_s + text_s)

    def receive(self, tokens: int, now_s: float) -> None:
        """All but the lookahead can be heard; that too after the last hop."""
        before = max(0, self.sent - LOOKAHEAD_TOKENS)
        self.sent += tokens
        after = self.sent if self.sent == self.total else max(0, self.sent - LOOKAHEAD_TOKENS)
        if self.first_audio_at_s is None:
            self.first_audio_at_s = self.audio_ends_at_s = now_s
        self.silent_s += max(0.0, now_s - self.audio_ends_at_s)
        self.audio_ends_at_s = max(now_s, self.audio_ends_at_s) + (after - before) * TOKEN_S


@dataclass
class Replica:
    """is_up: it answers. accepts: it takes new sessions. life: counts its restarts; events of an earlier life are void.

    slowness: factor of all its service times.
    """

    number: int
    slowness: float = 1.0
    is_up: bool = True
    accepts: bool = True
    life: int = 0
    live: set[Session] = field(default_factory=set)
    without_audio: int = 0
    start_free_at_s: float = 0.0
    is_computing: bool = False
    first: deque[tuple[Session, int]] = field(default_factory=deque)
    later: list[tuple[float, int, Session, int]] = field(default_factory=list)  # by deadline
    _order: int = 0

    def begin(self, session: Session, now_s: float, times: ServiceTimes) -> None:
        """Take a session; its first tokens are ready at ``session.ready_at_s``."""
        self.live.add(session)
        self.without_audio += 1
        self.start_free_at_s = max(now_s, self.start_free_at_s) + self.slowness * times.start_s
        session.begun_at_s = self.start_free_at_s
        session.tokens_s = self.slowness * interpolate(times.tokens_s, len(self.live))

    def push(self, session: Session, tokens: int) -> None:
        if session.sent == 0:
            self.first.append((session, tokens))
        else:
            self._order += 1
            heapq.heappush(self.later, (session.audio_ends_at_s, self._order, session, tokens))

    def pop_batch(self, times: ServiceTimes) -> tuple[list[tuple[Session, int]], float]:
        """At least one hop of those that wait, and no more than fit the intended duration. Returns them, and seconds."""
        batch: list[tuple[Session, int]] = []
        chunks = 0.0
        while len(batch) < MAX_BATCH_HOPS and (self.first or self.later):
            session, tokens = self.first[0] if self.first else self.later[0][2:]
            more = chunks + times.chunks(session, tokens)
            if batch and self.slowness * times.batch(more) > TARGET_BATCH_S:
                break
            chunks = more
            batch.append(self.first.popleft() if self.first else heapq.heappop(self.later)[2:])
        return batch, self.slowness * times.batch(chunks)

    def end(self) -> list[Session]:
        """It dies or is replaced: returns the sessions that are lost."""
        lost = sorted(self.live, key=lambda session: session.caller)
        self.live.clear()
        self.first.clear()
        self.later.clear()
        self.is_up = self.accepts = self.is_computing = False
        self.without_audio, self.start_free_at_s = 0, 0.0
        self.life += 1
        return lost

    def come_back(self) -> None:
        self.is_up = self.accepts = True
