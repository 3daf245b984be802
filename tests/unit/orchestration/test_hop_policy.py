"""The hop policy by itself (properties of one decision and of whole sessions) and under load (a simulated server)."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bistream.orchestration.hop_policy import HopPolicy, HopProgress
from bistream.rates import CHUNK_TOKENS, LOOKAHEAD_TOKENS, SPEECH_BLOCK_TOKENS, SPEECH_TOKENS_PER_SECOND
from bistream.token2wav.hop_jobs import BatchPace, HopQueue
from bistream.token2wav.service import FIRST_TOKENS_PER_S, MAX_BATCH_HOPS, TARGET_BATCH_S

POLICY = HopPolicy()
TOKEN_S = 1 / SPEECH_TOKENS_PER_SECOND
FIRST_HOP = POLICY.first_hop_tokens + LOOKAHEAD_TOKENS
NEAREST = CHUNK_TOKENS - 1 + POLICY.min_hop_tokens  # the nearest boundary is never further away
VOCODER_WITHHOLDS_TOKENS = 4  # eight mel frames, until the final hop


@st.composite
def progresses(draw: st.DrawFn) -> HopProgress:
    """Any state of a session that a sequence of legal hops can reach."""
    sent = draw(st.just(0) | st.integers(FIRST_HOP, 400))
    return HopProgress(
        prompt_tokens=draw(st.integers(0, 750)),
        received_tokens=sent + draw(st.integers(0, 300)),
        sent_tokens=sent,
        has_ended=draw(st.booleans()),
        playback_buffer_s=draw(st.floats(0, 20)) if sent else 0.0,
        hop_latency_s=draw(st.floats(0, 2)) if sent else 0.0,
    )


@settings(max_examples=300, deadline=None)
@given(progresses())
def test_a_hop_takes_available_tokens(progress: HopProgress) -> None:
    count = POLICY.next_hop(progress)
    if count is not None:
        assert 0 <= count <= progress.pending_tokens
        assert count > 0 or (progress.has_ended and progress.pending_tokens == 0)
        is_final = progress.has_ended and count == progress.pending_tokens
        assert is_final or progress.sent_tokens + count > LOOKAHEAD_TOKENS  # it speaks


@settings(max_examples=300, deadline=None)
@given(progresses())
def test_wanted_tokens_are_what_an_underrun_lacks(progress: HopProgress) -> None:
    """With one fewer, only an urgent hop is due; with all of them a hop is due."""
    wanted = POLICY.wanted_tokens(progress)
    dry = dataclasses.replace(progress, has_ended=False, playback_buffer_s=0.0, received_tokens=progress.received_tokens + wanted)
    assert wanted > 0 and POLICY.next_hop(dry) is not None
    if wanted != CHUNK_TOKENS and not progress.sent_tokens:
        assert POLICY.next_hop(dataclasses.replace(dry, received_tokens=dry.received_tokens - 1)) is None


@pytest.mark.parametrize(("received", "sent", "wanted"), [(0, 0, 18), (10, 0, 8), (18, 0, 25), (18, 18, 10), (20, 18, 8), (60, 18, 25)])
def test_wanted_tokens(received: int, sent: int, wanted: int) -> None:
    """After a prompt of 50 tokens the next boundary at least ten tokens away is at 25 spoken tokens, 28 with the lookahead."""
    assert POLICY.wanted_tokens(HopProgress(50, received, sent, False)) == wanted


@settings(max_examples=300, deadline=None)
@given(progresses())
def test_after_the_end_something_is_always_due(progress: HopProgress) -> None:
    assert POLICY.next_hop(dataclasses.replace(progress, has_ended=True)) is not None


@settings(max_examples=300, deadline=None)
@given(progresses())
def test_a_hop_is_no_longer_than_the_listeners_buffer(progress: HopProgress) -> None:
    """Or it ends at the nearest boundary; the last one may take a few tokens more, so that none is tiny."""
    count = POLICY.next_hop(progress)
    assume(count is not None and progress.sent_tokens)
    assert count is not None
    allowed = max(NEAREST, min(POLICY.max_hop_tokens, progress.playback_buffer_s * SPEECH_TOKENS_PER_SECOND))
    assert count <= allowed + (POLICY.min_hop_tokens if progress.has_ended else 0)


@settings(max_examples=300, deadline=None)
@given(progresses())
def test_a_hop_ends_on_the_grid_unless_it_is_first_last_or_urgent(progress: HopProgress) -> None:
    count = POLICY.next_hop(progress)
    assume(count is not None and progress.sent_tokens)
    assert count is not None
    is_final = progress.has_ended and count == progress.pending_tokens
    is_urgent = progress.playback_buffer_s <= POLICY.urgent_buffer_s + progress.hop_latency_s
    after = dataclasses.replace(progress, sent_tokens=progress.sent_tokens + count)
    assert is_final or is_urgent or after.position % CHUNK_TOKENS == 0


@settings(max_examples=300, deadline=None)
@given(progresses())
def test_an_underrun_sends_the_available_tokens(progress: HopProgress) -> None:
    assume(progress.sent_tokens and progress.pending_tokens >= POLICY.urgent_hop_tokens)
    assert POLICY.next_hop(dataclasses.replace(progress, playback_buffer_s=0.1)) is not None


@settings(max_examples=300, deadline=None)
@given(progresses())
def test_recheck_is_the_moment_at_which_the_answer_changes(progress: HopProgress) -> None:
    delay_s = POLICY.recheck_after_s(progress)
    if delay_s is None:
        dry = dataclasses.replace(progress, playback_buffer_s=0.0)
        assert POLICY.next_hop(progress) is not None or POLICY.next_hop(dry) is None
        return
    later = dataclasses.replace(progress, playback_buffer_s=progress.playback_buffer_s - delay_s)
    assert POLICY.next_hop(later) is not None
    if delay_s > 0.01:
        sooner = dataclasses.replace(progress, playback_buffer_s=progress.playback_buffer_s - delay_s + 0.01)
        assert POLICY.next_hop(sooner) is None


@pytest.mark.parametrize("prompt_tokens", [0, 37, 50, 750])
def test_first_hop(prompt_tokens: int) -> None:
    def next_hop(received: int, has_ended: bool) -> int | None:
        return POLICY.next_hop(HopProgress(prompt_tokens, received, 0, has_ended))

    assert next_hop(FIRST_HOP - 1, has_ended=False) is None
    assert next_hop(FIRST_HOP, has_ended=False) == FIRST_HOP
    assert next_hop(200, has_ended=False) == FIRST_HOP
    assert next_hop(200, has_ended=True) == FIRST_HOP  # the listener does not wait for all of it
    assert [next_hop(received, has_ended=True) for received in (0, 1, 17, 25)] == [0, 1, 17, 25]


def test_twelve_tokens_are_spoken_after_the_first_text_block() -> None:
    policy = HopPolicy(first_hop_tokens=12)
    assert policy.next_hop(HopProgress(25, SPEECH_BLOCK_TOKENS, 0, has_ended=False)) == SPEECH_BLOCK_TOKENS
    assert POLICY.next_hop(HopProgress(25, SPEECH_BLOCK_TOKENS, 0, has_ended=False)) is None


def test_hops_grow_with_the_listeners_buffer() -> None:
    """The language model has run far ahead; every hop completes at once."""
    sent, buffer_s, sizes = 0, 0.0, []
    while sent < 600:
        count = POLICY.next_hop(HopProgress(50, 10_000, sent, False, buffer_s))
        assert count is not None
        sizes.append(count)
        sent += count
        buffer_s = (sent - LOOKAHEAD_TOKENS) * TOKEN_S
    assert sizes == [18, 10, 25, 50, 100, 100, 100, 100, 100]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 100), st.integers(0, 400), st.floats(0.0, 30.0))
def test_every_session_ends(prompt_tokens: int, total_tokens: int, buffer_s: float) -> None:
    """The language model ended before the first hop: hops follow without a pause, the last one takes the rest."""
    sent, hops = 0, 0
    while True:
        count = POLICY.next_hop(HopProgress(prompt_tokens, total_tokens, sent, True, buffer_s if hops else 0.0))
        assert count is not None
        sent, hops = sent + count, hops + 1
        if sent == total_tokens:
            break
    assert hops <= 2 + total_tokens // POLICY.min_hop_tokens


@dataclasses.dataclass
class Listener:
    """One session of the simulation: the language model's pace and the listener's buffer."""

    prompt_tokens: int
    total_tokens: int
    starts_at_s: float
    tokens_per_s: float
    sent: int = 0
    in_flight: bool = False
    asked_at_s: float = 0.0
    latency_s: float = 0.0
    first_audio_s: float | None = None
    audio_ends_at_s: float = 0.0
    silent_s: float = 0.0

    def progress(self, now_s: float) -> HopProgress:
        received = min(self.total_tokens, max(0, int((now_s - self.starts_at_s) * self.tokens_per_s)))
        buffer_s = max(0.0, self.audio_ends_at_s - now_s) if self.first_audio_s is not None else 0.0
        return HopProgress(self.prompt_tokens, received, self.sent, received == self.total_tokens, buffer_s, self.latency_s)

    def audible_tokens(self, sent: int) -> int:
        if sent == self.total_tokens:
            return sent
        return max(0, sent - LOOKAHEAD_TOKENS - VOCODER_WITHHOLDS_TOKENS)

    def receive(self, count: int, now_s: float) -> None:
        seconds = (self.audible_tokens(self.sent + count) - self.audible_tokens(self.sent)) * TOKEN_S
        if self.first_audio_s is None:
            self.first_audio_s = self.audio_ends_at_s = now_s
        self.silent_s += max(0.0, now_s - self.audio_ends_at_s)
        self.audio_ends_at_s = max(now_s, self.audio_ends_at_s) + seconds
        self.latency_s = now_s - self.asked_at_s
        self.sent += count
        self.in_flight = False


def simulate(listeners: list[Listener], service_s: Callable[[list[int]], float], step_s: float = 0.005) -> None:
    """One server that batches like the service; ``service_s`` receives the tokens computed per hop."""
    queue: HopQueue[tuple[Listener, int]] = HopQueue()
    pace = BatchPace(TARGET_BATCH_S, FIRST_TOKENS_PER_S)
    batch: list[tuple[Listener, int]] = []
    now_s = done_at_s = 0.0
    while any(listener.sent < listener.total_tokens for listener in listeners):
        now_s += step_s
        assert now_s < 300, "a session never ended"
        if batch and now_s >= done_at_s:
            for listener, count in batch:
                listener.receive(count, now_s)
            batch = []
        for listener in listeners:
            progress = listener.progress(now_s)
            if listener.in_flight or progress.received_tokens == 0 or listener.sent == listener.total_tokens:
                continue
            due = POLICY.next_hop(progress)
            if due is not None:
                listener.in_flight, listener.asked_at_s = True, now_s
                queue.push((listener, due), is_first=listener.sent == 0, deadline_s=now_s + progress.playback_buffer_s, tokens=due)
        if not batch and len(queue):
            batch = queue.pop_batch(MAX_BATCH_HOPS, pace.max_tokens)
            seconds = service_s([computed_tokens(listener, count) for listener, count in batch])
            pace.observe(sum(count for _, count in batch), seconds)
            done_at_s = now_s + seconds


def computed_tokens(listener: Listener, count: int) -> int:
    """From the last boundary whose caches are committed to the end of what is spoken."""
    position = listener.prompt_tokens + max(0, listener.sent - LOOKAHEAD_TOKENS)
    is_final = listener.sent + count == listener.total_tokens
    end = listener.prompt_tokens + listener.sent + count - (0 if is_final else LOOKAHEAD_TOKENS)
    return end - position // CHUNK_TOKENS * CHUNK_TOKENS


def crowd(number: int, tokens_per_s: float, seed: int) -> list[Listener]:
    """Sessions of 4 to 12 s that start within 3 s of each other."""
    chance = random.Random(seed)
    return [Listener(chance.randint(0, 250), chance.randint(100, 300), chance.uniform(0, 3), tokens_per_s) for _ in range(number)]


def service_curve(number: int, load: float) -> Callable[[list[int]], float]:
    """10 ms per call, and a cost per token at which ``number`` listeners at the pace of speech use the share ``load`` of the server."""
    per_token_s = load * TOKEN_S / number
    return lambda tokens: 0.01 + per_token_s * sum(tokens)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(10, 40), st.floats(60, 400), st.floats(0.05, 0.5), st.integers(0, 1000))
def test_nobody_starves_as_long_as_capacity_allows(number: int, tokens_per_s: float, load: float, seed: int) -> None:
    """Up to half load (about 0.7 with recomputed tokens and the cost of calls), no listener hears a gap."""
    listeners = crowd(number, tokens_per_s, seed)
    simulate(listeners, service_curve(number, load))
    assert max(listener.silent_s for listener in listeners) == pytest.approx(0.0, abs=0.01)
    waits = [listener.first_audio_s - listener.starts_at_s for listener in listeners if listener.first_audio_s is not None]
    assert len(waits) == number
    assert max(waits) < FIRST_HOP / tokens_per_s + 1.0


def test_the_simulation_detects_an_overload() -> None:
    listeners = crowd(20, 100.0, seed=1)
    simulate(listeners, service_curve(20, load=1.6))
    assert max(listener.silent_s for listener in listeners) > 0.5


def test_a_pause_of_the_language_model_is_bridged_with_available_tokens() -> None:
    """30 tokens, then a pause: the rest of them goes out when the listener needs it, not when the text continues."""
    progress = HopProgress(prompt_tokens=50, received_tokens=30, sent_tokens=FIRST_HOP, has_ended=False, playback_buffer_s=0.44)
    larger = dataclasses.replace(progress, prompt_tokens=60)  # the next boundary is 25 tokens away
    assert POLICY.next_hop(progress) == 10
    assert POLICY.next_hop(larger) is None
    delay_s = POLICY.recheck_after_s(larger)
    assert delay_s is not None
    assert delay_s == pytest.approx(0.44 - POLICY.urgent_buffer_s, abs=1e-3)
    assert POLICY.next_hop(dataclasses.replace(larger, playback_buffer_s=0.44 - delay_s)) == 12


def test_hops_start_earlier_on_a_slow_server() -> None:
    """A hop that took 0.6 s makes 0.8 s of buffer urgent."""
    calm = HopProgress(prompt_tokens=60, received_tokens=30, sent_tokens=FIRST_HOP, has_ended=False, playback_buffer_s=0.8)
    slow = dataclasses.replace(calm, hop_latency_s=0.6)
    assert POLICY.next_hop(calm) is None
    assert POLICY.next_hop(slow) == 12
