"""Sessions whose vocoder state is in slots: equal to the plain stage in any calls, reused slots like new ones."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.checkpoints.config import CheckpointConfig, VocoderConfig
from bistream.config import RuntimeConfig
from bistream.errors import BusyError
from bistream.mel2wav import slotted
from bistream.mel2wav.hop_plan import Bucket
from bistream.mel2wav.stage import VocoderStage
from tests.unit.mel2wav import tiny
from tests.unit.mel2wav.plain_slots import PlainSlots
from tests.unit.mel2wav.speaking import Session, cuts_of_session, speak
from tests.unit.mel2wav.speaking import check_equal as check_near

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


check_equal = functools.partial(check_near, tolerance=2e-3, error_db=60.0)  # f0 in Hz is rounded, and the phase accumulates it


@settings(max_examples=4)
@given(st.lists(cuts_of_session, min_size=1, max_size=4))
def test_any_sessions_match_the_plain_network(stages: tuple[VocoderStage, PlainSlots], sessions: list[Session]) -> None:
    plain, slots = stages
    check_equal(speak(slots, sessions), speak(plain, sessions))


def test_an_empty_hop_and_one_beyond_the_largest_bucket_use_and_keep_the_state(stages: tuple[VocoderStage, PlainSlots]) -> None:
    sessions = [([30, LONGEST + 5, 25, 10], 0), ([20, 12, LONGEST], 0), ([0, 25, 0, 0], 0), ([0], 0)]
    check_equal(speak(stages[1], sessions), speak(stages[0], sessions))


def test_nan_stays_in_its_session_and_does_not_outlive_it(stages: tuple[VocoderStage, PlainSlots]) -> None:
    plain, slots = stages
    sessions = [([25, 20, 9], 0)] * SESSIONS
    exact = speak(plain, sessions)
    found = speak(slots, sessions, broken=(1, 3))
    for index, pieces in enumerate(found):
        if index in (1, 3):
            assert not np.isfinite(np.concatenate(pieces)).all()
        else:
            check_equal([pieces], [exact[index]])
    for value in (slots._slots.mel, slots._slots.source, slots._slots.withheld, slots._slots.phase):
        value[1:] = float("nan")  # any content that dead sessions leave
    check_equal(speak(slots, sessions), exact)


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
