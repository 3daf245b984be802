"""A simulated server with a clock of its own: real hop policy, queue, batch pace, capacity meter and admission.

Used by ``test_overload.py``. A batch takes as long as on an H200, but each of its hops eight times as long, so that a crowd is a hundred
listeners.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bistream.errors import BusyError
from bistream.gpu.claims import HOPS, PATIENCE_S
from bistream.hops.batch_rules import FIRST_TOKENS_PER_S, LONG_BATCH_S, MAX_BATCH_HOPS, BatchRules
from bistream.hops.policy import HopPolicy
from bistream.hops.progress import HopProgress
from bistream.hops.queue import BatchPace, HopQueue
from bistream.sessions.load import NOTHING, LoadControl, Need, SessionLoad, need_of, text_bytes
from bistream.sessions.request_checks import SessionStart
from bistream.token2wav.capacity import CapacityMeter
from bistream.token2wav.load_report import LoadReport
from bistream.types import GenerationOptions
from tests.formats import AUDIO_FORMAT, BLOCKS, CHUNK_TOKENS, LOOKAHEAD_TOKENS, SPEECH_BLOCK_TOKENS, SPEECH_TOKENS_PER_SECOND

TOKEN_S = 1 / SPEECH_TOKENS_PER_SECOND
VOCODER_WITHHOLDS_TOKENS = 4  # eight mel frames, until the final hop
MAX_UNREAD_S = 60.0
LOOK_S, AMPLE_S, AMPLE_LOOK_S = 0.02, 1.0, 0.1  # a listener with ample audio is looked at less often, which only saves time
PROMPT_TOKENS = 125
STEPS = 10
STEP_S = 0.008  # of the clock
POLICY = HopPolicy(AUDIO_FORMAT, BLOCKS)
FIRST_TOKENS = {is_whole: POLICY.wanted_tokens(HopProgress(PROMPT_TOKENS, 0, 0, False, is_whole=is_whole)) for is_whole in (True, False)}


@dataclass
class Listener:
    """One session: the language model's pace and the listener's buffer. is_whole: all of the text is in the start request."""

    starts_at_s: float
    total_tokens: int
    tokens_per_s: float
    is_whole: bool = True
    admitted: bool = False
    retry_after_s: float | None = None
    sent: int = 0
    in_flight: bool = False
    asked_at_s: float = 0.0
    look_at_s: float = 0.0
    latency_s: float = 0.0
    first_audio_s: float | None = None
    audio_ends_at_s: float = 0.0
    made_s: float = 0.0
    silent_s: float = 0.0
    counted: Need = NOTHING

    @property
    def is_done(self) -> bool:
        return self.sent == self.total_tokens

    @property
    def start(self) -> SessionStart:
        text = b"x" * int(14 * self.total_tokens * TOKEN_S)
        return SessionStart(None, text, self.is_whole, None, "", "anna", GenerationOptions(), 1.0, False)

    def received(self, now_s: float) -> int:
        """As the language model makes them, or block by block as the text comes."""
        made = int((now_s - self.starts_at_s) * self.tokens_per_s)
        return min(self.total_tokens, made if self.is_whole else made // SPEECH_BLOCK_TOKENS * SPEECH_BLOCK_TOKENS)

    def buffer_s(self, now_s: float) -> float:
        return max(0.0, self.audio_ends_at_s - now_s) if self.first_audio_s is not None else 0.0

    def progress(self, now_s: float) -> HopProgress:
        received = self.received(now_s)
        has_ended = received == self.total_tokens
        first_s = self.starts_at_s + FIRST_TOKENS[self.is_whole] / self.tokens_per_s
        next_s = self.starts_at_s + (received + SPEECH_BLOCK_TOKENS) / self.tokens_per_s
        return HopProgress(
            PROMPT_TOKENS,
            received,
            self.sent,
            has_ended,
            self.buffer_s(now_s),
            self.latency_s,
            is_whole=self.is_whole,
            is_resting=not self.is_whole and not has_ended,
            next_block_s=max(0.0, next_s - now_s),
            waited_s=max(0.0, now_s - first_s),
        )

    def standing(self, now_s: float) -> SessionLoad:
        received = self.received(now_s)
        return SessionLoad(
            age_s=now_s - self.starts_at_s,
            buffer_s=self.buffer_s(now_s),
            made_s=self.made_s,
            received_s=received * TOKEN_S,
            tokens_ended=received == self.total_tokens,
            text_ended=self.is_whole,
            hop_waits=self.in_flight,
            voice_tokens=PROMPT_TOKENS,
        )

    def audible_tokens(self, sent: int) -> int:
        return sent if sent == self.total_tokens else max(0, sent - LOOKAHEAD_TOKENS - VOCODER_WITHHOLDS_TOKENS)

    def computed_tokens(self, count: int) -> int:
        """From the last boundary whose caches are committed to the end of what is spoken."""
        position = PROMPT_TOKENS + max(0, self.sent - LOOKAHEAD_TOKENS)
        is_final = self.sent + count == self.total_tokens
        return PROMPT_TOKENS + self.sent + count - (0 if is_final else LOOKAHEAD_TOKENS) - position // CHUNK_TOKENS * CHUNK_TOKENS

    def receive(self, count: int, now_s: float) -> None:
        seconds = (self.audible_tokens(self.sent + count) - self.audible_tokens(self.sent)) * TOKEN_S
        if self.first_audio_s is None:
            self.first_audio_s = self.audio_ends_at_s = now_s
        self.silent_s += max(0.0, now_s - self.audio_ends_at_s)
        self.audio_ends_at_s = max(now_s, self.audio_ends_at_s) + seconds
        self.made_s += seconds
        self.latency_s = now_s - self.asked_at_s
        self.sent += count
        self.in_flight = False
        self.look_at_s = now_s


def batch_s(hops: list[tuple[Listener, int]]) -> float:
    """10.5 ms, 7.2 ms for a first hop, 8.8 ms for a chunk of others."""
    first = sum(listener.sent == 0 for listener, _ in hops)
    chunks = sum(listener.computed_tokens(count) for listener, count in hops if listener.sent) / CHUNK_TOKENS
    return 0.0105 + 0.0072 * first + 0.0088 * chunks


@dataclass
class Server:
    """slowness: of a batch that begins at a time. offered: by their start. others_first: the language model claims the GPU all the time,
    and a batch lets it pass before each of the solver's steps as long as it may."""

    offered: list[Listener]
    slowness: Callable[[float], float] = lambda now_s: 1.0
    pages: int = 0
    others_first: bool = False
    now_s: float = 0.0
    live: list[Listener] = field(default_factory=list)
    made: list[tuple[float, float]] = field(default_factory=list)  # (end of a batch, its audio seconds)
    most_pages: float = 0.0

    def __post_init__(self) -> None:
        self.capacity = CapacityMeter(LONG_BATCH_S, MAX_BATCH_HOPS)
        self.queue: HopQueue[tuple[Listener, int]] = HopQueue()
        self.turns = BatchRules(BatchPace(FIRST_TOKENS_PER_S))
        self.batch: list[tuple[Listener, int]] = []
        self.batch_began_s, self.batch_ends_s, self.waited_s, self.leftover = 0.0, 0.0, 0.0, False
        self.coming = sorted(self.offered, key=lambda listener: -listener.starts_at_s)
        self.load = LoadControl(0.9, self._report, self._needs, lambda: self.now_s)

    def _report(self) -> LoadReport:
        return LoadReport(self.capacity.audio_s_per_s, self.pages, 10 if self.pages else 0)

    def _needs(self) -> list[Need]:
        return [self._need(listener) for listener in self.live]

    def _need(self, listener: Listener) -> Need:
        listener.counted = need_of(listener.start, listener.standing(self.now_s), self.load.report, self.load.lengths, AUDIO_FORMAT)
        return listener.counted

    def run(self, until_s: float) -> None:
        """Offers the sessions, computes batches as the service does, and lets the listeners play."""
        while self.now_s < until_s:
            self.now_s += STEP_S
            while self.coming and self.coming[-1].starts_at_s <= self.now_s:
                self._offer(self.coming.pop())
            if self.batch and self.now_s >= self.batch_ends_s:
                self._finish(self.batch)
                self.batch = []
            self._ask()
            if not self.batch and len(self.queue):
                self._begin()

    def _begin(self) -> None:
        waits_s = STEPS * PATIENCE_S[HOPS] if self.others_first and self.turns.may_wait(None, self.queue, self.now_s) else 0.0
        self.waited_s += waits_s
        self.batch = [hop.item for hop in self.turns.next_batch(self.queue, self.now_s)]
        self.batch_began_s, self.leftover = self.now_s - (self.waited_s - waits_s), len(self.queue) > 0
        seconds = self.slowness(self.now_s) * batch_s(self.batch)
        self.turns.pace.observe(sum(count for _, count in self.batch), seconds)
        self.batch_ends_s = self.now_s + seconds + waits_s

    def _offer(self, listener: Listener) -> None:
        try:
            self.load.admit(self._need(listener))
        except BusyError as error:
            listener.retry_after_s = error.retry_after_s
        else:
            listener.admitted = True
            self.live.append(listener)

    def _finish(self, batch: list[tuple[Listener, int]]) -> None:
        tokens = sum(count for _, count in batch)
        self.capacity.observe(tokens * TOKEN_S, len(batch), self.batch_began_s, self.now_s - self.waited_s, self.leftover)
        self.made.append((self.now_s, tokens * TOKEN_S))
        for listener, count in batch:
            listener.receive(count, self.now_s)
            if listener.is_done:
                self.live.remove(listener)
                self.load.ended(text_bytes(listener.start), listener.made_s, listener.counted)
        self.most_pages = max(self.most_pages, sum(listener.sent * TOKEN_S for listener in self.live))

    def _ask(self) -> None:
        for listener in self.live:
            if listener.in_flight or listener.is_done or self.now_s < listener.look_at_s:
                continue
            progress = listener.progress(self.now_s)
            listener.look_at_s = self.now_s + (LOOK_S if progress.playback_buffer_s < AMPLE_S else AMPLE_LOOK_S)
            if progress.received_tokens == 0 or progress.playback_buffer_s > MAX_UNREAD_S:
                continue
            due = POLICY.next_hop(progress)
            if due is not None:
                listener.in_flight, listener.asked_at_s = True, self.now_s
                deadline_s = self.now_s + progress.playback_buffer_s
                self.queue.push((listener, due), is_first=listener.sent == 0, deadline_s=deadline_s, tokens=due)

    # What it did

    def admitted(self, begin_s: float = 0.0, end_s: float = 1e9) -> list[Listener]:
        return [one for one in self.offered if one.admitted and begin_s <= one.starts_at_s < end_s]

    def audio_s_per_s(self, begin_s: float, end_s: float) -> float:
        return sum(seconds for at_s, seconds in self.made if begin_s <= at_s < end_s) / (end_s - begin_s)

    def first_audio_s(self, quantile: float) -> float:
        waits = [one.first_audio_s - one.starts_at_s for one in self.admitted() if one.first_audio_s is not None]
        return float(np.quantile(waits, quantile))


def poisson(chance: random.Random, per_s: float, until_s: float, listener: Callable[[float], Listener]) -> list[Listener]:
    starts: list[Listener] = []
    now_s = chance.expovariate(per_s)
    while now_s < until_s:
        starts.append(listener(now_s))
        now_s += chance.expovariate(per_s)
    return starts
