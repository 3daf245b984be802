"""The incremental vocoder: hop sizes, neighbours in a batch and the cuts of a session do not change the audible result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.config import RuntimeConfig
from bistream.evaluation.seam_meter import joints_of, measure_seams
from bistream.mel2wav.grouping import MAX_BATCH_FRAMES, MAX_PADDING, group_similar
from bistream.mel2wav.stage import VocoderHop, VocoderStage
from bistream.types import FloatArray
from tests.formats import SAMPLES_PER_MEL_FRAME, VOCODER_OVERLAP_FRAMES
from tests.reference_vocoder import ReferenceVocoderStage
from tests.unit.mel2wav import tiny
from tests.unit.mel2wav.speaking import Session, check_equal, cuts_of_session, speak

SEED = 11
CUTS = st.lists(st.integers(1, 45), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def stage(config: RuntimeConfig) -> VocoderStage:
    return VocoderStage(config, tiny.CHECKPOINT)


def stream(stage: VocoderStage, mel: torch.Tensor, cuts: Sequence[int], seed: int = SEED) -> list[FloatArray]:
    state = stage.open(seed)
    chunks = []
    begin = 0
    for index, cut in enumerate(cuts):
        chunks += stage.hop([VocoderHop(state, mel[:, begin : begin + cut], finalize=index == len(cuts) - 1)])
        begin += cut
    assert begin == mel.shape[1]
    state.close()
    return chunks


def signal_to_error_db(found: FloatArray, expected: FloatArray) -> float:
    assert found.shape == expected.shape
    return float(10 * np.log10(np.mean(expected**2) / (np.mean((found - expected) ** 2) + 1e-20)))


@settings(max_examples=4)
@given(CUTS)
def test_any_cut_gives_nearly_the_offline_audio(stage: VocoderStage, cuts: list[int]) -> None:
    """The difference is the right context beyond the 8 withheld frames: 30 dB is far below the speech."""
    mel = tiny.voiced_mel(sum(cuts), seed=len(cuts))
    streamed = np.concatenate(stream(stage, mel, cuts))
    assert signal_to_error_db(streamed, stage.synthesize(mel, SEED)) > 30


@settings(max_examples=4)
@given(CUTS)
def test_a_hop_withholds_eight_frames_and_the_last_one_none(stage: VocoderStage, cuts: list[int]) -> None:
    chunks = stream(stage, tiny.voiced_mel(sum(cuts)), cuts)
    received = np.cumsum(cuts)
    out = [max(0, int(frames) - VOCODER_OVERLAP_FRAMES) for frames in received[:-1]] + [int(received[-1])]
    assert np.cumsum([len(chunk) for chunk in chunks]).tolist() == [frames * SAMPLES_PER_MEL_FRAME for frames in out]


@settings(max_examples=3)
@given(st.lists(cuts_of_session, min_size=2, max_size=4))
def test_neighbours_in_a_batch_change_nothing(stage: VocoderStage, sessions: list[Session]) -> None:
    alone = [stream(stage, tiny.voiced_mel(sum(cuts), seed=index), cuts, 1000 * index - 1) for index, (cuts, _) in enumerate(sessions)]
    check_equal(speak(stage, sessions), alone, tolerance=2e-3, error_db=60.0)  # f0 in Hz is rounded, and the phase accumulates it


def test_the_default_joint_is_better_than_the_references(stage: VocoderStage, config: RuntimeConfig) -> None:
    cuts = [30, 50, 50, 100, 40]
    mel = tiny.voiced_mel(sum(cuts))
    reports = {}
    for name, vocoder in (("smooth", stage), ("reference", ReferenceVocoderStage(config, tiny.CHECKPOINT))):
        chunks = stream(vocoder, mel, cuts)
        offline = vocoder.synthesize(mel, SEED)
        reports[name] = measure_seams(np.concatenate(chunks), offline, joints_of([len(chunk) for chunk in chunks]))
    assert len(reports["smooth"].joints) == len(cuts) - 1
    assert reports["smooth"].worst_click_db < 0.5 < reports["reference"].worst_click_db
    assert reports["smooth"].worst_level_step_db < 0.67 < reports["reference"].worst_level_step_db  # 0.67 dB is upstream's 8 %


def test_a_joint_begins_with_the_audio_that_was_withheld(stage: VocoderStage) -> None:
    """The withheld audio fades out: full weight at the first sample, none after two frames, and the two weights add up to 1."""
    mel = tiny.voiced_mel(40)
    pieces = []
    for offset in (0.0, 1.0):
        state = stage.open(SEED)
        stage.hop([VocoderHop(state, mel[:, :25], False)])
        state.withheld = state.withheld + offset
        pieces.append(stage.hop([VocoderHop(state, mel[:, 25:], True)])[0])
    share = pieces[1] - pieces[0]
    fade = 2 * SAMPLES_PER_MEL_FRAME
    np.testing.assert_allclose(share[:fade] + share[:fade][::-1], 1.0, atol=1e-5)
    assert share[0] > 0.999 and (np.diff(share[:fade]) <= 1e-6).all()
    np.testing.assert_array_equal(share[fade:], 0.0)
    torch.testing.assert_close(stage.fade_in + stage.fade_out, torch.ones_like(stage.fade_in))


def test_the_joint_depends_on_the_carried_phase(stage: VocoderStage, config: RuntimeConfig) -> None:
    """With the reference's restarting phase (and no noise), streamed harmonics deviate from the offline ones for good."""
    cuts = [40, 40, 40]
    mel = tiny.voiced_mel(sum(cuts))
    for kind, low, high in ((VocoderStage, 30.0, 200.0), (ReferenceVocoderStage, -20.0, 15.0)):
        vocoder = kind(config, tiny.CHECKPOINT)
        vocoder.noise_gain = 0 * vocoder.noise_gain
        tail = slice(-30 * SAMPLES_PER_MEL_FRAME, None)
        streamed = np.concatenate(stream(vocoder, mel, cuts))[tail]
        assert low < signal_to_error_db(streamed, vocoder.synthesize(mel, SEED)[tail]) < high


def test_seeds(stage: VocoderStage) -> None:
    mel = tiny.voiced_mel(20)
    first, again, other = (stage.synthesize(mel, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-4
    assert np.abs(first).max() <= tiny.CONFIG.audio_limit


def test_speed_shortens_by_the_factor(stage: VocoderStage) -> None:
    mel = tiny.voiced_mel(31)
    assert len(stage.synthesize(mel, SEED, speed=1.3)) == int(31 / 1.3) * SAMPLES_PER_MEL_FRAME
    assert len(stage.synthesize(mel, SEED)) == 31 * SAMPLES_PER_MEL_FRAME


def test_empty_hops(stage: VocoderStage) -> None:
    """No new frames: no audio, no change; the final hop releases the withheld audio."""
    mel, none = tiny.voiced_mel(25), torch.zeros(80, 0)
    state = stage.open(SEED)
    pieces = ((none, False), (mel, False), (none, False), (none, True))
    chunks = [stage.hop([VocoderHop(state, piece, finalize)])[0] for piece, finalize in pieces]
    assert [len(chunk) // SAMPLES_PER_MEL_FRAME for chunk in chunks] == [0, 17, 0, 8]
    assert signal_to_error_db(np.concatenate(chunks), stage.synthesize(mel, SEED)) > 30
    state.close()
    never_spoke = stage.open(SEED)
    assert len(stage.hop([VocoderHop(never_spoke, none, True)])[0]) == 0
    never_spoke.close()


def test_a_row_that_is_not_finite_affects_only_itself(stage: VocoderStage) -> None:
    mel = tiny.voiced_mel(20)
    broken = mel.clone()
    broken[3, 4] = float("nan")
    states = [stage.open(SEED) for _ in range(2)]
    good, bad = stage.hop([VocoderHop(state, item, True) for state, item in zip(states, (mel, broken), strict=True)])
    for state in states:
        state.close()
    np.testing.assert_allclose(good, stage.synthesize(mel, SEED), atol=1e-4)
    assert not np.isfinite(bad).all()


def test_state_is_bounded_and_close_frees_it(stage: VocoderStage) -> None:
    state = stage.open(SEED)
    mel = tiny.voiced_mel(400)
    sizes = set()
    for begin in range(0, 400, 50):
        stage.hop([VocoderHop(state, mel[:, begin : begin + 50], False)])
        sizes.add(sum(item.untyped_storage().nbytes() for item in (state.mel, state.source, state.withheld, state.phase)))
    assert len(sizes) == 1  # the same after every hop: nothing grows or keeps a batch alive
    assert sizes.pop() < 64 * 1024
    state.close()
    state.close()
    assert state.closed and state.mel.numel() == state.source.numel() == state.withheld.numel() == 0


@given(st.lists(st.integers(1, 2000), max_size=80))
def test_groups_hold_every_row_once_and_are_bounded(lengths: list[int]) -> None:
    groups = group_similar(lengths)
    assert sorted(position for group in groups for position in group) == list(range(len(lengths)))
    for group in groups:
        longest = max(lengths[position] for position in group)
        assert all(lengths[position] >= (1 - MAX_PADDING) * longest for position in group)
        assert len(group) == 1 or len(group) * longest <= MAX_BATCH_FRAMES
