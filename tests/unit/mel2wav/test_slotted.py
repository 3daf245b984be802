"""Sessions whose vocoder state is in slots: equal to the plain stage in any calls, reused slots like new ones."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.checkpoints.config import CheckpointConfig, VocoderConfig
from bistream.config import RuntimeConfig
from bistream.errors import BusyError
from bistream.mel2wav import slotted
from bistream.mel2wav.hop_plan import Bucket
from bistream.mel2wav.stage import VocoderHop, VocoderStage
from bistream.types import FloatArray
from tests.unit.mel2wav import tiny
from tests.unit.mel2wav.plain_slots import PlainSlots

SMALL = VocoderConfig(base_channels=16, f0_channels=16)
SESSIONS = 5
BUCKETS = tuple(Bucket(rows, frames) for frames in (40, 72, 136) for rows in (2, SESSIONS))
LONGEST = max(bucket.frames for bucket in BUCKETS)


@pytest.fixture(scope="module", autouse=True)
def small_buckets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("bucket_of", "group_rows"):
            patch.setattr(slotted, name, functools.partial(getattr(slotted, name), buckets=BUCKETS))
        patch.setattr(slotted, "BUCKETS", BUCKETS)
        yield


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> tuple[VocoderStage, PlainSlots]:
    base = tiny.write_model(tmp_path_factory.mktemp("model"), tiny.random_state(SMALL))
    config, checkpoint = RuntimeConfig(model_dir=base.model_dir, device="cpu", max_sessions=SESSIONS), CheckpointConfig(vocoder=SMALL)
    return VocoderStage(config, checkpoint), PlainSlots(config, checkpoint)


def speak(stage: VocoderStage, sessions: Sequence[Sequence[int]], broken: Sequence[int] = ()) -> list[list[FloatArray]]:
    """Hops of each session, all sessions advanced together; numbers are new frames. broken: sessions whose mel is NaN."""
    states = [stage.open(1000 * index - 1) for index in range(len(sessions))]
    mels = [tiny.voiced_mel(max(1, sum(cuts)), seed=index) for index, cuts in enumerate(sessions)]
    for index in broken:
        mels[index].fill_(float("nan"))
    pieces: list[list[FloatArray]] = [[] for _ in sessions]
    for turn in range(max(len(cuts) for cuts in sessions)):
        members = [index for index, cuts in enumerate(sessions) if turn < len(cuts)]
        begins = [sum(sessions[index][:turn]) for index in members]
        hops = [
            VocoderHop(states[index], mels[index][:, begin : begin + sessions[index][turn]], turn == len(sessions[index]) - 1)
            for index, begin in zip(members, begins, strict=True)
        ]
        for index, piece in zip(members, stage.hop(hops), strict=True):
            pieces[index].append(piece)
    for state in states:
        state.close()
    return pieces


def check_equal(found: Sequence[Sequence[FloatArray]], expected: Sequence[Sequence[FloatArray]]) -> None:
    for pieces, exact in zip(found, expected, strict=True):
        assert [len(piece) for piece in pieces] == [len(piece) for piece in exact]
        for piece, other in zip(pieces, exact, strict=True):
            np.testing.assert_allclose(piece, other, atol=2e-3)  # f0 in Hz is rounded, and the phase accumulates it
            assert len(piece) == 0 or np.square(piece - other).mean() < 1e-6 * np.square(other).mean()


@settings(max_examples=4)
@given(st.lists(st.lists(st.integers(0, 45), min_size=1, max_size=4), min_size=1, max_size=4))
def test_any_sessions_match_the_plain_network(stages: tuple[VocoderStage, PlainSlots], sessions: list[list[int]]) -> None:
    plain, slots = stages
    check_equal(speak(slots, sessions), speak(plain, sessions))


def test_a_hop_beyond_the_largest_bucket_uses_and_keeps_the_state(stages: tuple[VocoderStage, PlainSlots]) -> None:
    sessions = [[30, LONGEST + 5, 25, 10], [20, 12, LONGEST]]
    check_equal(speak(stages[1], sessions), speak(stages[0], sessions))


def test_nan_stays_in_its_session_and_does_not_outlive_it(stages: tuple[VocoderStage, PlainSlots]) -> None:
    plain, slots = stages
    cuts = [[25, 20, 9]] * SESSIONS
    exact = speak(plain, cuts)
    found = speak(slots, cuts, broken=(1, 3))
    for index, pieces in enumerate(found):
        if index in (1, 3):
            assert not np.isfinite(np.concatenate(pieces)).all()
        else:
            check_equal([pieces], [exact[index]])
    for value in (slots._slots.mel, slots._slots.source, slots._slots.withheld, slots._slots.phase):
        value[1:] = float("nan")  # any content that dead sessions leave
    check_equal(speak(slots, cuts), exact)


def test_slots_run_out_and_are_returned(stages: tuple[VocoderStage, PlainSlots]) -> None:
    slots = stages[1]
    states = [slots.open(seed) for seed in range(SESSIONS)]
    with pytest.raises(BusyError):
        slots.open(0)
    for _ in range(2):
        for state in states:
            state.close()
    again = [slots.open(seed) for seed in range(SESSIONS)]
    assert len({state.slot for state in again}) == SESSIONS
    for state in again:
        state.close()
