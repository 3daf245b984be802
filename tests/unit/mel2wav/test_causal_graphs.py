"""The causal vocoder in the tier of recorded graphs, unrecorded on the CPU: equal to the plain stage for any pieces in any batches."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.checkpoints.config import CausalVocoderConfig
from bistream.config import RuntimeConfig
from bistream.errors import BusyError
from bistream.mel2wav.causal.graphs import stage as causal_stage
from bistream.mel2wav.causal.graphs.functions import Backend
from bistream.mel2wav.causal.graphs.stage import CausalGraphStage
from bistream.mel2wav.causal.hop_plan import advance, plan_call
from bistream.mel2wav.causal.stage import CausalVocoderStage
from bistream.mel2wav.causal.weights import build_hift
from bistream.mel2wav.hop_plan import Bucket, bucket_of
from bistream.mel2wav.stage import VocoderHop
from tests.formats import SAMPLES_PER_MEL_FRAME
from tests.unit.launches import Launches
from tests.unit.mel2wav.speaking import Session, cuts_of_session, speak
from tests.unit.mel2wav.speaking import check_equal as check_near
from tests.unit.mel2wav.test_causal_stage import EXACT
from tests.unit.mel2wav.tiny import CAUSAL, random_state, voiced_mel

OTHER = CausalVocoderConfig(  # other depths and numbers of blocks than the released sizes
    base_channels=24, f0_channels=12, resblock_kernel_sizes=(3, 5), resblock_dilation_sizes=((1, 2), (2,)),
    source_resblock_kernel_sizes=(3, 3, 5), source_resblock_dilation_sizes=((1,), (1, 3), (2,)),
)  # fmt: skip
BUCKETS = (Bucket(1, 12), Bucket(2, 24), Bucket(3, 36))
SESSIONS = 5


@functools.cache
def plain_stage(sizes: CausalVocoderConfig = CAUSAL) -> CausalVocoderStage:
    hift = build_hift(random_state(sizes), sizes, torch.device("cpu"))
    noise = hift.m_source.merge_noise(
        torch.rand(100 * 480, 9, generator=torch.Generator().manual_seed(5))
    )  # a second: used again and again
    return CausalVocoderStage(RuntimeConfig(device="cpu"), sizes, noise, hift)


def graph_stage(
    sizes: CausalVocoderConfig = CAUSAL, dtype: torch.dtype = torch.float32, buckets: Sequence[Bucket] = BUCKETS, backend: Backend = None
) -> CausalGraphStage:
    config = RuntimeConfig(device="cpu", max_sessions=SESSIONS)
    return CausalGraphStage(config, sizes, plain_stage(sizes), dtype=dtype, record=False, backend=backend, buckets=buckets)


@functools.cache
def shared_stage() -> CausalGraphStage:
    return graph_stage()


check_equal = functools.partial(check_near, tolerance=EXACT)


@settings(max_examples=3)
@given(st.lists(cuts_of_session, min_size=1, max_size=SESSIONS))
def test_any_pieces_in_any_batches_match_the_plain_network(sessions: list[Session]) -> None:
    """Also those that are longer than the largest bucket, and batches with more sessions than it has rows."""
    check_equal(speak(shared_stage(), sessions), speak(plain_stage(), sessions))
    assert shared_stage().slots == (0, SESSIONS)


def test_other_sizes() -> None:
    sessions = [([20, 11, 30], 0), ([3, 0, 40], 1)]
    check_equal(speak(graph_stage(OTHER), sessions), speak(plain_stage(OTHER), sessions))


def test_16_bit_stays_close_to_float32() -> None:
    """Only the decoder's convolutions are rounded: f0, source and Fourier transforms are exact."""
    sessions = [([20, 11, 30], 0)]
    exact, found = (np.concatenate(speak(stage, sessions)[0]) for stage in (plain_stage(), graph_stage(dtype=torch.float16)))
    assert 10 * np.log10(np.square(exact).sum() / np.square(found - exact).sum()) > 45


def test_nan_stays_in_its_session_and_does_not_outlive_it() -> None:
    subject, sessions = graph_stage(), [([9, 20], 0)] * SESSIONS
    exact = speak(plain_stage(), sessions)
    found = speak(subject, sessions, broken=(1, 3))
    for index, pieces in enumerate(found):
        if index in (1, 3):
            assert not np.isfinite(np.concatenate(pieces)).all()
        else:
            check_equal([pieces], [exact[index]])
    for store in vars(subject._slots).values():
        store[:] = float("nan")  # any content that dead sessions leave
    check_equal(speak(subject, sessions), exact)


def test_slots_run_out_and_are_returned() -> None:
    stage = graph_stage()
    states = [stage.open(seed) for seed in range(SESSIONS)]
    with pytest.raises(BusyError):
        stage.open(0)
    for _ in range(2):
        for state in states:
            state.close()
    assert len({stage.open(seed).slot for seed in range(SESSIONS)}) == SESSIONS


def test_offline_synthesis_is_the_plain_networks_and_needs_no_slot() -> None:
    stage, mel = graph_stage(), voiced_mel(40)
    states = [stage.open(seed) for seed in range(SESSIONS)]
    assert np.array_equal(stage.synthesize(mel, 1, speed=1.2), plain_stage().synthesize(mel, 1, speed=1.2))
    assert len(states) == stage.slots[0] == SESSIONS


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(0, 40))
def test_plans_hand_out_every_frame_once(news: list[int], last: int) -> None:
    session = SimpleNamespace(received_frames=0, pitched_frames=0, decoded_frames=0)
    begin = 0
    for number, new in enumerate([*news, last]):
        ends = number == len(news)
        plan = plan_call(session, new, ends, 4, 3)
        assert 0 <= plan.ahead <= 1 and plan.kept <= 4 and plan.frames == plan.kept + new
        assert plan.ahead + plan.pitched <= plan.frames and plan.decoded <= plan.frames
        first, end = plan.samples(4)
        if plan.decoded:
            assert session.decoded_frames * SAMPLES_PER_MEL_FRAME + first == begin
            begin += end - first
        advance(session, plan)
        known = session.received_frames
        assert (session.pitched_frames, session.decoded_frames) == ((known, known) if ends else (max(0, known - 3), max(0, known - 4)))
    assert begin == SAMPLES_PER_MEL_FRAME * (sum(news) + last)


def test_a_steady_hop_has_a_bucket_of_nearly_its_size() -> None:
    """25 tokens, 50 frames, and the 4 frames before them."""
    assert bucket_of(64, 54, causal_stage.BUCKETS) == Bucket(64, 56)


@pytest.mark.slow  # the price of a start on a GPU host, and nothing of what is heard
def test_every_function_is_compiled_once_for_all_buckets() -> None:
    compiled = 0

    def count(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        nonlocal compiled
        compiled += 1
        return module.forward

    torch._dynamo.reset()
    stage, after = graph_stage(backend=count, buckets=(Bucket(5, 23), Bucket(7, 29), Bucket(2, 19))), []
    for call in stage._calls.values():
        call.launch()
        after.append(compiled)
    # 3 widths: snake, two forms of add_and_snake, add_and_leak; the latter once more after the first convolution; 2 other functions
    assert after == [3 * 4 + 1 + 2] * 3


def test_a_call_can_be_recorded() -> None:
    """One bucket launches the same operations for the beginning, the middle and the end of speech, and for no row at all."""
    stage = graph_stage(buckets=(Bucket(3, 36),))
    state, seen = stage.open(0), []
    call = stage._calls[Bucket(3, 36)]
    for frames, finalize in ((20, False), (30, False), (2, True)):
        stage.hop([VocoderHop(state, voiced_mel(frames), finalize)])
        with Launches() as launches:
            call.launch()
        seen.append(launches.seen)
    stage._parts.meta.zero_()
    with Launches() as launches:
        call.launch()
    assert len(launches.seen) > 500 and all(other == launches.seen for other in seen)
