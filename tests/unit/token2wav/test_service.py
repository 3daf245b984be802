"""The token2wav service on fake networks: order of service, endings, errors and leases; then once on real ones.

The fakes answer at once unless a test holds the worker inside a flow call (``FakeFlow.hold``), so nothing here sleeps.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.checkpoints.config import CheckpointConfig, FlowConfig
from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
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
from bistream.gpu.steps import Steps
from bistream.gpu.tier import Tier
from bistream.hops.queue import BatchPace, HopQueue
from bistream.token2mel.solving import FAILED
from bistream.token2wav.factory import load_renderer
from bistream.token2wav.hop_jobs import MAX_HOP_TOKENS
from bistream.token2wav.renderer import sizes_of
from bistream.token2wav.service import Token2Wav, Token2WavHop
from bistream.token2wav.speech_stages import MAX_FAILURES_IN_A_ROW, SpeechStages
from bistream.types import AudioOptions, FloatArray, VoicePrompt
from tests.clock import ManualClock
from tests.formats import SAMPLES_PER_TOKEN

TIMEOUT_S = 120.0  # of a test that hangs
REFUSED_BY_FLOW, FLOW_RAISES, NOT_FINITE, VOCODER_RAISES = 6001, 6002, 6003, 6004  # tokens that make a fake fail
PREPARING_RAISES = 13  # length of a prompt


def prompt(tokens: int = 4, **changes: Any) -> VoicePrompt:
    values: dict[str, Any] = {
        "prompt_text": "",
        "speech_tokens": np.arange(tokens, dtype=np.int32),
        "speech_feat": np.zeros((2 * tokens, 80), np.float32),
        "speaker_embedding": np.ones(192, np.float32),
    }
    return VoicePrompt(**{**values, **changes})


@dataclass(eq=False)
class FakeState:
    tag: int
    pieces_left: int = 0
    closed: bool = False
    freed: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        self.closed = True
        self.freed.set()

    def fail(self, sentence: str) -> None:
        self.pieces_left = 0


@dataclass
class FakeHops:
    """``stage.FlowHops``: hops of the fake flow, computed with the last of ``steps_left`` steps."""

    flow: FakeFlow
    hops: Sequence[Any]
    steps_left: int
    results: list[torch.Tensor | BistreamError] = field(default_factory=list)

    def step(self) -> None:
        self.steps_left -= 1
        if self.steps_left:
            self.flow.pause()
        else:
            self.results = self.flow.hop(self.hops)

    def abandon(self, sentence: str) -> None:
        self.steps_left = 0


@dataclass
class FakeFlow:
    """Renders each token as two frames that hold its number. Records the batches, and in ``log`` the order of tokens and pieces.

    pieces: of a voice's preparation, by the length of its prompt. A piece is logged as minus that length.
    """

    config: FlowConfig = field(default_factory=FlowConfig)
    batches: list[list[tuple[int, ...]]] = field(default_factory=list)
    begun: list[list[tuple[int, ...]]] = field(default_factory=list)
    states: list[FakeState] = field(default_factory=list)
    refuses_to_open: bool = False
    log: list[int] = field(default_factory=list)
    pieces: dict[int, int] = field(default_factory=dict)
    steps: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _gate: threading.Event | None = None
    _entered: threading.Event = field(default_factory=threading.Event)

    def open(self, voice: VoicePrompt, expected_speech_s: float | None = None) -> FakeState:
        if self.refuses_to_open:
            raise BusyError("No state left; try again later.")
        length = len(voice.speech_tokens)
        self.states.append(FakeState(length, self.pieces.get(length, 0)))
        return self.states[-1]

    def begin(self, hops: Sequence[Any]) -> FakeHops:
        self.begun.append([tuple(hop.token_ids) for hop in hops])
        return FakeHops(self, hops, self.steps)

    def pause(self) -> None:
        """Between two steps of a batch that is not done."""
        self._pass()

    def hop(self, hops: Sequence[Any]) -> list[torch.Tensor | BistreamError]:
        self.batches.append([tuple(hop.token_ids) for hop in hops])
        self.log += [token for hop in hops for token in hop.token_ids]
        assert all(not hop.state.closed and not hop.state.pieces_left for hop in hops)
        self._pass()
        if any(FLOW_RAISES in hop.token_ids for hop in hops):
            raise RuntimeError("out of memory")
        refusal = EngineError("This session alone failed.")
        return [refusal if REFUSED_BY_FLOW in hop.token_ids else self.mel(hop.token_ids) for hop in hops]

    def synthesis(self, token_ids: Sequence[int], voice: VoicePrompt) -> Steps[torch.Tensor]:
        """A step for every token."""
        for token in token_ids:
            self.log.append(token)
            self._pass()
            yield
        if FLOW_RAISES in token_ids:
            raise RuntimeError("out of memory")
        return self.mel(token_ids)

    def needs_preparation(self, state: FakeState) -> bool:
        return state.pieces_left > 0

    def prepare(self, state: FakeState) -> None:
        assert not state.closed
        self.log.append(-state.tag)
        self._pass()
        state.pieces_left -= 1
        if state.tag == PREPARING_RAISES:
            raise RuntimeError("out of memory")

    @staticmethod
    def mel(token_ids: Sequence[int]) -> torch.Tensor:
        values = torch.tensor(token_ids, dtype=torch.float32)
        values[values == NOT_FINITE] = float("nan")
        return values.repeat_interleave(2).expand(80, -1)

    def _pass(self) -> None:
        gate = self._gate
        if gate is not None:
            self._entered.set()
            assert gate.wait(TIMEOUT_S)

    @contextmanager
    def hold(self) -> Iterator[Callable[[], None]]:
        """The worker blocks inside its next call; the yielded function waits until it is there. Released at the end."""
        self._gate = threading.Event()
        self._entered.clear()
        gate = self._gate

        def wait_until_inside() -> None:
            assert self._entered.wait(TIMEOUT_S)

        yield wait_until_inside
        self._gate = None
        gate.set()


@dataclass
class FakeVocoder:
    states: list[FakeState] = field(default_factory=list)

    def open(self, seed: int) -> FakeState:
        self.states.append(FakeState(seed))
        return self.states[-1]

    def hop(self, hops: Sequence[Any]) -> list[FloatArray]:
        if any((hop.mel == VOCODER_RAISES).any() for hop in hops):
            raise RuntimeError("out of memory")
        return [hop.mel[0].repeat_interleave(480).numpy() for hop in hops]

    def synthesis(self, mel: torch.Tensor, seed: int, speed: float) -> Steps[FloatArray]:
        yield
        return mel[0][: int(mel.shape[1] / speed)].repeat_interleave(480).numpy()


@pytest.fixture(scope="module", autouse=True)
def _a_token_of_an_utterance_is_a_step() -> Iterator[None]:
    """Otherwise as many fake steps as fit into two real milliseconds are one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bistream.token2wav.speech_stages.STEP_S", 0.0)
        yield


@dataclass
class Rig:
    service: Token2Wav
    flow: FakeFlow
    vocoder: FakeVocoder
    clock: ManualClock

    def hop(self, session_id: str, *tokens: int, finalize: bool = False, start: int = 0, **values: Any) -> Future[Any]:
        """start: True or the number of the prompt's tokens."""
        voice = prompt(4 if start is True else start) if start else None
        return self.service.hop(Token2WavHop(session_id, tokens, finalize, voice, **values))

    def all_states_closed(self) -> bool:
        return all(state.closed for state in self.flow.states + self.vocoder.states)


def speech_stages(flow: Any, vocoder: Any) -> SpeechStages:
    """The renderer over fakes of both stages."""
    return SpeechStages(flow, vocoder, sizes_of(CheckpointConfig()))


def make_rig(**settings_: Any) -> Rig:
    config = RuntimeConfig(**{"drain_timeout_s": 0.0, **settings_})
    flow, vocoder, clock = FakeFlow(), FakeVocoder(), ManualClock()
    return Rig(Token2Wav(config, clock=clock, renderer=speech_stages(flow, vocoder)), flow, vocoder, clock)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = make_rig(max_sessions=8, session_idle_timeout_s=30.0)
    yield made
    made.service.close()
    assert made.all_states_closed()
    assert made.service.live_sessions == 0


def audio(future: Future[Any]) -> list[int]:
    """The tokens that a fake waveform encodes."""
    waveform = future.result(TIMEOUT_S)
    assert waveform.dtype == np.float32
    return [int(value) for value in waveform[::SAMPLES_PER_TOKEN]]


def error(future: Future[Any]) -> BistreamError:
    found = future.exception(TIMEOUT_S)
    assert isinstance(found, BistreamError), found
    return found


def test_a_session_from_start_to_end(rig: Rig) -> None:
    assert audio(rig.hop("a", 1, 2, 3, start=True, audio=AudioOptions(5))) == [1, 2, 3]
    assert audio(rig.hop("a", 4)) == [4]
    assert rig.vocoder.states[0].tag == 5
    assert audio(rig.hop("a", 5, 6, finalize=True)) == [5, 6]
    assert isinstance(error(rig.hop("a", 7)), UnknownSessionError)
    assert audio(rig.hop("a", 8, start=True)) == [8]  # the id is free again


def test_order_of_service(rig: Rig) -> None:
    """First hops before later ones, then the session that runs out of audio first."""
    for name, token in (("relaxed", 1), ("pressed", 2), ("blocker", 3)):
        audio(rig.hop(name, token, start=True))
    with rig.flow.hold() as wait_until_inside:
        pending = [rig.hop("blocker", 10)]
        wait_until_inside()
        pending.append(rig.hop("relaxed", 11, playback_buffer_s=5.0))
        pending.append(rig.hop("pressed", 12, playback_buffer_s=0.2))
        pending.append(rig.hop("new", 13, start=True))
        pending.append(rig.hop("newer", 14, start=True))
    assert [audio(future) for future in pending] == [[10], [11], [12], [13], [14]]
    assert rig.flow.batches[-3:] == [[(10,)], [(13,), (14,), (12,)], [(11,)]]


def test_hops_of_one_session_keep_their_order_and_never_share_a_batch(rig: Rig) -> None:
    with rig.flow.hold() as wait_until_inside:
        pending = [rig.hop("a", 1, start=True)]
        wait_until_inside()
        pending += [rig.hop("a", 2, playback_buffer_s=9.0), rig.hop("a", 3), rig.hop("b", 4, start=True), rig.hop("a", 5, finalize=True)]
    assert [audio(future) for future in pending] == [[1], [2], [3], [4], [5]]
    assert rig.flow.batches == [[(1,)], [(4,)], [(2,)], [(3,)], [(5,)]]


def test_bad_requests_leave_the_session_unchanged(rig: Rig) -> None:
    assert audio(rig.hop("a", 1, start=True)) == [1]
    for token in (-1, FlowConfig().vocab_size):
        assert isinstance(error(rig.hop("a", token)), InvalidInputError)
    assert isinstance(error(rig.hop("a", 2, playback_buffer_s=float("nan"))), InvalidInputError)
    assert isinstance(error(rig.hop("a", 2, expected_speech_s=-1.0)), InvalidInputError)
    assert isinstance(error(rig.hop("a", 2, start=True)), SessionExistsError)
    unknown = error(rig.hop("nobody", 2))
    assert isinstance(unknown, UnknownSessionError)
    assert unknown.session_id == "nobody"
    with rig.flow.hold() as wait_until_inside:
        last = rig.hop("a", 2, finalize=True)
        wait_until_inside()
        assert isinstance(error(rig.hop("a", 3)), InvalidInputError)  # the final hop is queued
    assert audio(last) == [2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speech_tokens": np.array([9999, 1, 2, 3], np.int32)}, "Speech tokens"),
        ({"speech_tokens": np.zeros((1, 4), np.int32)}, "prompt_speech_tokens"),
        ({"speech_feat": np.zeros((7, 80), np.float32)}, "prompt_speech_feat"),
        ({"speech_feat": np.full((8, 80), np.nan, np.float32)}, "prompt_speech_feat"),
        ({"speech_feat": np.full((8, 80), 1e30, np.float32)}, "prompt_speech_feat"),
        ({"speaker_embedding": np.zeros(191, np.float32)}, "prompt_spk_embedding"),
        ({"speaker_embedding": np.full(192, np.inf, np.float32)}, "prompt_spk_embedding"),
    ],
)
def test_bad_prompts(rig: Rig, changes: dict[str, Any], words: str) -> None:
    bad = prompt(**changes)
    for future in (rig.service.hop(Token2WavHop("a", (1,), False, bad)), rig.service.synthesize([1], bad)):
        found = error(future)
        assert isinstance(found, InvalidInputError)
        assert words in str(found)
    assert rig.service.live_sessions == 0
    assert audio(rig.service.hop(Token2WavHop("a", (1,), True, prompt(0)))) == [1]  # a prompt without speech is valid


def test_one_session_fails_alone(rig: Rig) -> None:
    for name in "abc":
        audio(rig.hop(name, 1, start=True))
    with rig.flow.hold() as wait_until_inside:
        blocker = rig.hop("d", 1, start=True)
        wait_until_inside()
        good, refused, broken = rig.hop("a", 7), rig.hop("b", REFUSED_BY_FLOW), rig.hop("c", NOT_FINITE)
        after = rig.hop("b", 8)
    assert audio(blocker) == [1]
    assert audio(good) == [7]
    for failed in (refused, broken, after):
        assert isinstance(error(failed), EngineError)
    assert error(refused).session_id == "b"
    assert isinstance(error(rig.hop("b", 9)), UnknownSessionError)
    assert isinstance(error(rig.hop("c", 9)), UnknownSessionError)
    assert audio(rig.hop("a", 9)) == [9]
    assert rig.service.live_sessions == 2


@pytest.mark.parametrize("token", [FLOW_RAISES, VOCODER_RAISES])
def test_an_exception_ends_the_sessions_of_its_batch_and_the_service_goes_on(rig: Rig, token: int) -> None:
    audio(rig.hop("other", 1, start=True))
    found = error(rig.hop("a", token, start=True))
    assert isinstance(found, EngineError)
    assert "memory" not in str(found)  # no inner message reaches the client
    assert audio(rig.hop("other", 2)) == [2]
    assert audio(rig.hop("a", 3, start=True)) == [3]


def test_admission(rig: Rig) -> None:
    for index in range(8):
        audio(rig.hop(f"s{index}", 1, start=True))
    assert isinstance(error(rig.hop("one more", 1, start=True)), BusyError)
    assert isinstance(error(rig.service.synthesize([1], prompt())), BusyError)
    audio(rig.hop("s0", 1, finalize=True))
    assert audio(rig.hop("one more", 1, start=True)) == [1]


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 25), st.sampled_from("abcd")), min_size=5, max_size=30))
def test_every_lease_expires_in_its_own_time(steps: list[tuple[int, str]]) -> None:
    """With any arrivals and any times of the check for idle sessions, each expires 30 s after its last request, and not before."""
    rig = make_rig(max_sessions=8, session_idle_timeout_s=30.0)
    heard_at: dict[str, float] = {}
    for seconds, session_id in steps:
        rig.clock.now += seconds
        now = rig.clock.now
        if now - heard_at.get(session_id, -math.inf) < 30.0:
            assert audio(rig.hop(session_id)) == []
        else:
            assert isinstance(error(rig.hop(session_id)), UnknownSessionError)
            assert audio(rig.hop(session_id, 1, start=True)) == [1]
        heard_at[session_id] = now
        assert rig.service.live_sessions == sum(now - last < 30.0 for last in heard_at.values())
    rig.service.close()


def test_an_abandoned_session_is_freed_by_the_worker_itself() -> None:
    """On the real clock: no other call arrives that could find it."""
    flow, vocoder = FakeFlow(), FakeVocoder()
    config = RuntimeConfig(session_idle_timeout_s=0.01, drain_timeout_s=0.0)
    service = Token2Wav(config, renderer=speech_stages(flow, vocoder))
    assert audio(service.hop(Token2WavHop("a", (1,), False, prompt()))) == [1]
    assert flow.states[0].freed.wait(TIMEOUT_S) and vocoder.states[0].freed.wait(TIMEOUT_S)
    assert service.live_sessions == 0
    service.close()


def test_a_session_that_is_being_computed_does_not_expire(rig: Rig) -> None:
    with rig.flow.hold() as wait_until_inside:
        pending = rig.hop("a", 1, start=True)
        wait_until_inside()
        rig.clock.now += 1000.0
        assert isinstance(error(rig.hop("b", 1)), UnknownSessionError)
    assert audio(pending) == [1]
    assert audio(rig.hop("a", 2)) == [2]


def test_cancel(rig: Rig) -> None:
    """Between hops, while a hop waits, while it is computed, after the end, and of an unknown session."""
    audio(rig.hop("idle", 1, start=True))
    rig.service.cancel("idle")
    with rig.flow.hold() as wait_until_inside:
        computed = rig.hop("computed", 2, start=True)
        wait_until_inside()
        waiting = rig.hop("waiting", 3, start=True)
        rig.service.cancel("waiting")
        rig.service.cancel("computed")
        assert isinstance(error(computed), CancelledError)  # at once, though the worker is still inside
        assert isinstance(error(waiting), CancelledError)
        again = rig.hop("computed", 4, start=True)
    assert audio(again) == [4]
    rig.service.cancel("nobody")
    assert audio(rig.hop("computed", 5, finalize=True)) == [5]
    rig.service.cancel("computed")
    assert (3,) not in [tokens for batch in rig.flow.batches for tokens in batch]
    assert audio(rig.hop("end", 1, start=True, finalize=True)) == [1]
    assert sum(not state.closed for state in rig.flow.states) <= 1  # all except perhaps the one that ended just now


def test_sessions_without_tokens(rig: Rig) -> None:
    assert audio(rig.hop("a", finalize=True, start=True)) == []
    assert rig.service.live_sessions == 0
    assert audio(rig.hop("b", start=True)) == []  # opens the voice before the first token arrives
    assert audio(rig.hop("b", 1)) == [1]
    assert audio(rig.hop("b", finalize=True)) == []
    assert rig.flow.batches[-1] == [()]  # here the stages flush: lookahead and overlap come out
    assert isinstance(error(rig.hop("b", 2)), UnknownSessionError)


def test_offline(rig: Rig) -> None:
    assert audio(rig.service.synthesize([1, 2, 3, 4], prompt())) == [1, 2, 3, 4]
    assert len(rig.service.synthesize([1, 2, 3, 4], prompt(), speed=2.0).result(TIMEOUT_S)) == 2 * SAMPLES_PER_TOKEN
    assert rig.service.live_sessions == 0
    for tokens, speed in (([], 1.0), ([-1], 1.0), ([1], 0.0), ([1], float("nan")), ([1], 100.0)):
        assert isinstance(error(rig.service.synthesize(tokens, prompt(), speed=speed)), InvalidInputError)
    for token in (FLOW_RAISES, NOT_FINITE):
        assert isinstance(error(rig.service.synthesize([token], prompt())), EngineError)


def test_hops_run_between_the_steps_of_an_utterance(rig: Rig) -> None:
    with rig.flow.hold() as wait_until_inside:
        whole = rig.service.synthesize([2] * 40, prompt())
        wait_until_inside()
        hops = [rig.hop(name, 4, start=True) for name in "ab"]
    assert [set(audio(future)) for future in (whole, *hops)] == [{2}, {4}, {4}]
    assert rig.flow.log == [2, 4, 4, *[2] * 39]


def test_an_utterance_ends_while_hops_never_cease(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still unless a test moves it: here a hop takes 0.1 s and there is always one."""
    whole = rig.service.synthesize([2] * 10, prompt())
    hops = 0
    compute = rig.flow.hop

    def slow(batch: Sequence[Any]) -> list[Any]:
        nonlocal hops
        rig.clock.now += 0.1
        if not whole.done() and hops < 100:
            hops += 1
            rig.hop("b", 5, start=hops == 1)
        return compute(batch)

    monkeypatch.setattr(rig.flow, "hop", slow)
    audio(rig.hop("a", 1, start=True))
    assert audio(whole) == [2] * 10
    assert hops < 100


def test_a_cancelled_utterance_gives_way_to_the_next_one(rig: Rig) -> None:
    with rig.flow.hold() as wait_until_inside:
        first = rig.service.synthesize([2] * 40, prompt(), session_id="first")
        wait_until_inside()
        waiting = rig.service.synthesize([3] * 40, prompt(), session_id="waiting")
        last = rig.service.synthesize([4], prompt(), session_id="last")
        assert isinstance(error(rig.service.synthesize([4], prompt(), session_id="last")), SessionExistsError)
        for name in ("first", "waiting", "nobody"):
            rig.service.cancel(name)
        assert all(isinstance(error(future), CancelledError) for future in (first, waiting))
        assert rig.service.live_sessions == 1
    assert audio(last) == [4]
    assert rig.flow.log == [2, 4]


def test_bounds_of_utterances() -> None:
    rig = make_rig(max_offline_jobs=2, max_offline_tokens=10)
    found = error(rig.service.synthesize([1] * 11, prompt()))
    assert isinstance(found, InvalidInputError) and "0.4 s" in str(found)
    with rig.flow.hold() as wait_until_inside:
        pending = [rig.service.synthesize([token] * 10, prompt()) for token in (1, 2)]
        wait_until_inside()
        assert isinstance(error(rig.service.synthesize([3], prompt())), BusyError)
        hop = rig.hop("a", 4, start=True)
    assert [audio(future) for future in (*pending, hop)] == [[1] * 10, [2] * 10, [4]]
    rig.service.close()


def test_hops_run_while_a_long_voice_is_prepared(rig: Rig) -> None:
    rig.flow.pieces = {30: 4, 8: 2}
    audio(rig.hop("live", 1, start=True))
    with rig.flow.hold() as wait_until_inside:
        long = rig.hop("long", 2, start=30)
        wait_until_inside()
        pending = [rig.hop("short", 3, start=8), rig.hop("live", 4)]
    assert [audio(future) for future in (long, *pending)] == [[2], [3], [4]]
    assert rig.flow.log == [1, -30, 4, -30, -8, -30, -8, 3, -30, 2]  # in turns: the short voice does not wait for the long one


def test_a_session_may_end_while_its_voice_is_prepared(rig: Rig) -> None:
    rig.flow.pieces = {30: 4, PREPARING_RAISES: 2}
    with rig.flow.hold() as wait_until_inside:
        cancelled = rig.hop("a", 2, start=30)
        wait_until_inside()
        rig.service.cancel("a")
        assert isinstance(error(cancelled), CancelledError)
    assert audio(rig.hop("b", 3, start=PREPARING_RAISES)) == [3]  # the fake flow takes the hop; the real one would refuse it
    assert rig.flow.log == [-30, -PREPARING_RAISES, 3]
    assert rig.flow.states[0].freed.wait(TIMEOUT_S)


def test_close_lets_sessions_finish() -> None:
    rig = make_rig(drain_timeout_s=TIMEOUT_S)
    audio(rig.hop("a", 1, start=True))
    closing = threading.Thread(target=rig.service.close)
    with rig.flow.hold() as wait_until_inside:
        last = rig.hop("a", 2, finalize=True)
        wait_until_inside()
        closing.start()
        while not (refused := rig.hop("b", 1, start=True)).done():
            rig.service.cancel("b")  # it was admitted: the other thread has not reached close yet
        assert isinstance(error(refused), ShuttingDownError)
    assert audio(last) == [2]
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()
    assert rig.all_states_closed()


def test_close_fails_what_does_not_finish() -> None:
    rig = make_rig()
    audio(rig.hop("idle", 1, start=True))
    with rig.flow.hold() as wait_until_inside:
        computed = rig.hop("computed", 2, start=True)
        wait_until_inside()
        offline = rig.service.synthesize([1], prompt())
        closing = threading.Thread(target=rig.service.close)
        closing.start()
        assert isinstance(error(computed), ShuttingDownError)
        assert isinstance(error(offline), ShuttingDownError)
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()
    rig.service.close()
    assert rig.all_states_closed()
    assert isinstance(error(rig.hop("late", 1, start=True)), ShuttingDownError)
    assert isinstance(error(rig.service.synthesize([1], prompt())), ShuttingDownError)


def test_callbacks_may_call_the_service(rig: Rig) -> None:
    """From an answer, and from the error of a cancel (which runs on the canceller's thread); a future cannot be cancelled."""
    chained: list[Future[Any]] = []
    first = rig.hop("a", 1, start=True)
    assert not first.cancel()
    first.add_done_callback(lambda _: chained.append(rig.hop("a", 2)))
    audio(first)
    with rig.flow.hold() as wait_until_inside:
        pending = rig.hop("b", 3, start=True)
        wait_until_inside()
        pending.add_done_callback(lambda _: chained.append(rig.hop("b", 4, start=True)))
        rig.service.cancel("b")
    while len(chained) < 2:  # the first callback may still be running
        audio(rig.hop("a", 9))
    assert sorted(audio(future) for future in chained) == [[2], [4]]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from(["start", "hop", "renew", "finalize", "cancel", "refuse", "raise", "expire", "offline"])
    ),
    max_size=30,
)


@settings(max_examples=15)
@given(OPERATIONS)
def test_whatever_happens_every_future_is_answered_and_everything_is_freed(operations: list[tuple[str, str]]) -> None:
    rig = make_rig(max_sessions=2)
    futures = []
    tokens = {"start": (1,), "hop": (2,), "renew": (), "finalize": (3,), "refuse": (REFUSED_BY_FLOW,), "raise": (FLOW_RAISES,)}
    for name, operation in operations:
        if operation == "cancel":
            rig.service.cancel(name)
        elif operation == "expire":
            rig.clock.now += 100.0
        elif operation == "offline":
            futures.append(rig.service.synthesize([5], prompt()))
        else:
            futures.append(rig.hop(name, *tokens[operation], finalize=operation == "finalize", start=operation == "start"))
    rig.service.close()
    assert all(future.done() for future in futures)
    assert all(future.exception() is None or isinstance(future.exception(), BistreamError) for future in futures)
    assert rig.all_states_closed()
    assert rig.service.live_sessions == 0


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 10), st.integers(0, 120)), max_size=30), st.integers(1, 10), st.integers(0, 200))
def test_queue_serves_all_in_order_within_bounds(items: list[tuple[bool, float, int]], max_items: int, max_tokens: int) -> None:
    queue: HopQueue[int] = HopQueue()
    for index, (is_first, deadline_s, tokens) in enumerate(items):
        queue.push(index, is_first=is_first, deadline_s=deadline_s, tokens=tokens)
    served = []
    while len(queue):
        batch = [hop.item for hop in queue.pop(queue.prefix(max_items, max_tokens))]
        assert 1 <= len(batch) <= max_items
        assert len(batch) == 1 or sum(items[index][2] for index in batch) <= max_tokens
        served += batch
    assert served == sorted(range(len(items)), key=lambda index: (not items[index][0], items[index][1], index))


@pytest.mark.parametrize("stalled", [25, 100, 200, 400])
def test_a_stall_makes_no_small_batches(stalled: int) -> None:
    """Three seconds, once; a server that has become slower is still noticed."""
    pace, sizes = BatchPace(500.0), random.Random(1)
    for _ in range(40):
        tokens = sizes.randrange(100, 300)
        pace.observe(tokens, 0.03 + 0.0004 * tokens)
    before = pace.tokens_within(0.15)
    pace.observe(stalled, 3.0)
    assert pace.tokens_within(0.15) > 0.6 * before
    for _ in range(100):
        tokens = sizes.randrange(100, 300)
        pace.observe(tokens, 10 * (0.03 + 0.0004 * tokens))
    assert pace.seconds(200) == pytest.approx(10 * 0.11, rel=0.1)


@given(st.floats(0.0, 0.02), st.floats(1e-5, 1e-2), st.lists(st.integers(1, 1600), min_size=2, max_size=40, unique=True))
def test_pace_finds_the_fixed_part_of_a_batch(fixed_s: float, per_token_s: float, batches: list[int]) -> None:
    pace = BatchPace(500.0)
    for tokens in batches:
        pace.observe(tokens, fixed_s + per_token_s * tokens)
    mean = sum(batches[-32:]) / len(batches[-32:])
    assert pace.seconds(round(mean)) == pytest.approx(fixed_s + per_token_s * round(mean), rel=0.6 / mean + 1e-6)
    if fixed_s <= 0.7 * (fixed_s + per_token_s * mean):
        assert pace.seconds(1000) == pytest.approx(fixed_s + per_token_s * 1000, rel=1e-4)


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_with_real_networks(tiny_model_dir: Path) -> None:
    """Concurrent sessions, some cancelled at any point: the others get what each would get alone, and no page is lost."""
    config = RuntimeConfig(model_dir=str(tiny_model_dir), device="cpu", flow_state_mb=64, drain_timeout_s=0.0, max_sessions=16)
    stages = load_renderer(config)
    assert isinstance(stages, SpeechStages)
    assert [(choice.stage, choice.tier) for choice in stages.tiers] == [("flow", Tier.PLAIN), ("vocoder", Tier.PLAIN)]
    service = Token2Wav(config, renderer=stages)
    voices = [prompt(tokens, speech_feat=np.full((2 * tokens, 80), -3.0, np.float32)) for tokens in (0, 37)]
    hops = [tuple(range(100, 118)), tuple(range(200, 225)), tuple(range(300, 312))]

    def speak(name: str, voice: VoicePrompt, until: int) -> list[Future[Any]]:
        futures = [
            service.hop(Token2WavHop(name, tokens, tokens is hops[-1], None if index else voice, AudioOptions(3), playback_buffer_s=9.0))
            for index, tokens in enumerate(hops[:until])
        ]
        if until < len(hops):
            service.cancel(name)
        return futures

    alone = [[future.result(TIMEOUT_S) for future in speak(f"alone{index}", voice, 3)] for index, voice in enumerate(voices)]
    together = [speak(f"kept{index}", voice, 3) for index, voice in enumerate(voices)]
    cancelled = [future for until in range(3) for future in speak(f"cancelled{until}", voices[1], until)]
    for expected, found in zip(alone, together, strict=True):
        assert sum(len(waveform) for waveform in expected) == sum(map(len, hops)) * SAMPLES_PER_TOKEN
        for left, right in zip(expected, found, strict=True):
            np.testing.assert_allclose(right.result(TIMEOUT_S), left, atol=5e-3)
    assert all(future.exception(TIMEOUT_S) is None or isinstance(future.exception(), CancelledError) for future in cancelled)
    service.close()
    stages.flow.check_integrity()
    assert stages.flow.pool.available == stages.flow.pool.total


@pytest.mark.usefixtures("one_thread")
def test_solver_steps_decide_the_speech_and_its_state(tiny_model_dir: Path) -> None:
    config = RuntimeConfig(model_dir=str(tiny_model_dir), device="cpu", flow_state_mb=64, max_sessions=2)
    usual = read_config(tiny_model_dir).flow.n_timesteps
    heard, page_bytes = {}, {}
    for steps in (0, usual, usual + 1):
        stages = load_renderer(replace(config, solver_steps=steps))
        assert isinstance(stages, SpeechStages)
        page_bytes[steps] = stages.flow.page_bytes
        service = Token2Wav(config, renderer=stages)
        heard[steps] = service.hop(Token2WavHop("a", tuple(range(100, 130)), True, prompt(20), AudioOptions(3))).result(TIMEOUT_S)
        service.close()
    assert np.array_equal(heard[0], heard[usual]) and not np.array_equal(heard[0], heard[usual + 1])
    assert page_bytes[0] == page_bytes[usual] < page_bytes[usual + 1]


def test_a_vocoder_that_cannot_open_leaves_nothing_open_in_the_flow(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(seed: int) -> FakeState:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(rig.vocoder, "open", refuse)
        assert isinstance(error(rig.hop("a", 1, start=True)), EngineError)
    assert [state.closed for state in rig.flow.states] == [True]
    assert audio(rig.hop("a", 1, start=True)) == [1]


def test_a_flow_that_keeps_failing_makes_the_process_unhealthy(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow answers an exception with an error for each of its sessions; lease renewals in between do not make it healthy."""
    audio(rig.hop("waiting", start=True))
    with monkeypatch.context() as patch:
        patch.setattr(rig.flow, "hop", lambda hops: [EngineError(FAILED) for _ in hops])
        for index in range(MAX_FAILURES_IN_A_ROW):
            assert rig.service.healthy
            assert isinstance(error(rig.hop(f"s{index}", 1, start=True)), EngineError)
            assert audio(rig.hop("waiting")) == []
        assert not rig.service.healthy
    assert audio(rig.hop("waiting", 1)) == [1]
    assert rig.service.healthy


def test_a_hop_does_not_take_the_id_of_an_utterance() -> None:
    """One cancel would end both."""
    rig = make_rig()
    with rig.flow.hold() as wait_until_inside:
        utterance = rig.service.synthesize([1, 2], prompt(), session_id="x")
        wait_until_inside()
        assert isinstance(error(rig.hop("x", 5, start=True)), SessionExistsError)
    assert len(audio(utterance)) == 2
    rig.service.close()


def test_refused_hops_are_no_audio_of_the_capacity() -> None:
    rig = make_rig()
    compute = rig.flow.hop

    def hop(hops: Sequence[Any]) -> Any:
        rig.clock.now += 0.001 if any(REFUSED_BY_FLOW in one.token_ids for one in hops) else 0.1
        return compute(hops)

    rig.flow.hop = hop  # type: ignore[method-assign]
    audio(rig.hop("good", *([1] * 25), start=True))

    def speak(times: int) -> float:
        for _ in range(times):
            audio(rig.hop("good", *([1] * 25), playback_buffer_s=1.0))
            rig.clock.now += 0.2
        return rig.service._capacity.audio_s_per_s

    before = speak(40)
    for number in range(20):
        error(rig.hop(f"bad{number}", *([REFUSED_BY_FLOW] * 75), start=True))
        rig.clock.now += 0.2
        speak(1)
    assert 0.0 < rig.service._capacity.audio_s_per_s <= 1.05 * before
    rig.service.close()


def test_where_the_worker_fails_nobody_waits_for_ever() -> None:
    rig = make_rig()
    audio(rig.hop("a", 1, start=True))

    def fail(batch: object) -> None:
        raise RuntimeError("a bug")

    rig.service._finish = fail  # type: ignore[method-assign]
    assert isinstance(error(rig.hop("a", 2)), EngineError)
    assert isinstance(error(rig.hop("b", 3, start=True)), EngineError) and not rig.service.healthy
    rig.service.close()


def test_a_hop_is_bounded(rig: Rig) -> None:
    assert audio(rig.hop("a", 1, start=True)) == [1]
    found = error(rig.hop("a", *([1] * (MAX_HOP_TOKENS + 1))))
    assert isinstance(found, InvalidInputError) and str(MAX_HOP_TOKENS) in str(found)
    assert len(audio(rig.hop("a", *([2] * MAX_HOP_TOKENS)))) == MAX_HOP_TOKENS


def test_a_session_may_be_longer_than_what_is_computed_at_once(rig: Rig) -> None:
    assert audio(rig.hop("a", 1, start=True)) == [1]
    for _ in range(40):
        assert len(audio(rig.hop("a", *([1] * 250)))) == 250
    assert isinstance(error(rig.hop("b", 1, start=7500)), InvalidInputError)
    assert rig.service.live_sessions == 1
