"""The middle tier's vocoder on a CPU, unrecorded and in float32: equal to the plain stage, reused slots like new ones, few compilations."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.checkpoints.config import CheckpointConfig, VocoderConfig
from bistream.config import RuntimeConfig
from bistream.errors import BusyError
from bistream.mel2wav import slotted
from bistream.mel2wav.graphs import stage as graph_stage
from bistream.mel2wav.graphs.call import VocoderCall
from bistream.mel2wav.graphs.stage import GraphOptions, GraphVocoderStage
from bistream.mel2wav.hop_plan import Bucket
from bistream.mel2wav.stage import VocoderStage
from tests.unit.mel2wav import tiny
from tests.unit.mel2wav.speaking import Session, cuts_of_session, speak
from tests.unit.mel2wav.speaking import check_equal as check_near

SMALL = VocoderConfig(base_channels=16, f0_channels=16)
OTHER = VocoderConfig(  # other depths and numbers of blocks than the released sizes
    base_channels=24, f0_channels=12, resblock_kernel_sizes=(3, 5), resblock_dilation_sizes=((1, 2), (2,)),
    source_resblock_kernel_sizes=(3, 3, 5), source_resblock_dilation_sizes=((1,), (1, 3), (2,)),
)  # fmt: skip
SESSIONS = 5
BUCKETS = tuple(Bucket(rows, frames) for frames in (40, 72, 136) for rows in (2, SESSIONS))  # rows that are padding are computed, too
LONGEST = max(bucket.frames for bucket in BUCKETS)


@pytest.fixture(scope="module", autouse=True)
def small_buckets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("bucket_of", "group_rows"):
            patch.setattr(slotted, name, functools.partial(getattr(slotted, name), buckets=BUCKETS))
        for module in (slotted, graph_stage):
            patch.setattr(module, "BUCKETS", BUCKETS)
        yield


def make(directory: Path, sizes: VocoderConfig, **options: Any) -> tuple[VocoderStage, GraphVocoderStage]:
    state = tiny.random_state(sizes)
    base = tiny.write_model(directory, state)
    config = RuntimeConfig(model_dir=base.model_dir, device="cpu", max_sessions=SESSIONS)
    checkpoint = CheckpointConfig(vocoder=sizes)
    chosen = GraphOptions(**{"backend": None, **options})
    return VocoderStage(config, checkpoint), GraphVocoderStage(config, checkpoint, dtype=torch.float32, record=False, options=chosen)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> tuple[VocoderStage, GraphVocoderStage]:
    return make(tmp_path_factory.mktemp("model"), SMALL)


check_equal = functools.partial(check_near, tolerance=2e-3, error_db=60)  # f0 in Hz is rounded, and the phase accumulates it


@settings(max_examples=3, deadline=None, derandomize=True)
@given(st.lists(cuts_of_session, min_size=1, max_size=4))
def test_any_sessions_match_the_plain_network(stages: tuple[VocoderStage, GraphVocoderStage], sessions: list[Session]) -> None:
    plain, graphs = stages
    check_equal(speak(graphs, sessions), speak(plain, sessions))


def test_a_hop_beyond_the_largest_bucket_uses_and_keeps_the_state(stages: tuple[VocoderStage, GraphVocoderStage]) -> None:
    sessions = [([30, LONGEST + 5, 25, 10], 0), ([20, 12, LONGEST], 0)]
    check_equal(speak(stages[1], sessions), speak(stages[0], sessions))


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("sizes", [SMALL, OTHER], ids=["small", "other"])
def test_every_layout_and_size(tmp_path: Path, sizes: VocoderConfig, channels_last: bool) -> None:
    plain, graphs = make(tmp_path, sizes, channels_last=channels_last)
    sessions = [([20, 11, 30], 0), ([3, 40], 0)]
    check_equal(speak(graphs, sessions), speak(plain, sessions))


def test_nan_stays_in_its_session_and_does_not_outlive_it(stages: tuple[VocoderStage, GraphVocoderStage]) -> None:
    plain, graphs = stages
    cuts = [([25, 20, 9], 0)] * SESSIONS
    exact = speak(plain, cuts)
    found = speak(graphs, cuts, broken=(1, 3))
    for index, pieces in enumerate(found):
        if index in (1, 3):
            assert not np.isfinite(np.concatenate(pieces)).all()
        else:
            check_equal([pieces], [exact[index]])
    for value in (graphs._slots.mel, graphs._slots.source, graphs._slots.withheld, graphs._slots.phase):
        value[1:] = float("nan")  # any content that dead sessions leave
    check_equal(speak(graphs, cuts), exact)


def test_slots_run_out_and_are_returned(stages: tuple[VocoderStage, GraphVocoderStage]) -> None:
    graphs = stages[1]
    states = [graphs.open(seed) for seed in range(SESSIONS)]
    with pytest.raises(BusyError):
        graphs.open(0)
    for _ in range(2):
        for state in states:
            state.close()
    again = [graphs.open(seed) for seed in range(SESSIONS)]
    assert len({state.slot for state in again}) == SESSIONS
    for state in again:
        state.close()


@pytest.mark.slow  # the price of a start on a GPU host, and nothing of what is heard
def test_every_function_is_compiled_once_for_all_buckets(tmp_path: Path) -> None:
    """Once for each width: a compilation takes about a second on a GPU host."""
    compiled = 0

    def count(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        nonlocal compiled
        compiled += 1
        return module.forward

    torch._dynamo.reset()
    graphs = make(tmp_path, SMALL, backend=count)[1]
    parts = next(iter(graphs._calls.values()))._parts
    after = []
    for bucket in (Bucket(5, 23), Bucket(7, 29), Bucket(2, 19)):
        VocoderCall(parts, bucket).launch()
        after.append(compiled)
    # 3 widths: snake, two forms of add_and_snake, add_and_leak; the latter once more after the first convolution; 6 other functions
    assert after == [3 * 4 + 1 + 6] * 3
