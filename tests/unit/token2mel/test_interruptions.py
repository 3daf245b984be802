"""A batch that stops between solver steps for others gives bit for bit what it gives at once, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bistream.errors import BusyError, EngineError
from bistream.token2mel.dit.graphs.runner import DitGraphRunner
from bistream.token2mel.stage import FlowHop, FlowHops, FlowStage
from bistream.token2mel.state import FlowState
from tests.unit.token2mel.flow_fixtures import DIT_CHECKPOINT, hop_mel, make_prompt, make_stage, make_tokens
from tests.unit.token2mel.test_dit_graphs import graph_stage as dit_graphs

ROUNDS, SESSIONS = 2, 2  # of each of the groups that are computed in turn
PROMPTS = (0, 37, 80)


NETWORKS: dict[str, Callable[..., FlowStage]] = {
    "unet": make_stage,
    "dit": partial(make_stage, checkpoint=DIT_CHECKPOINT),
    "dit in graphs": dit_graphs,  # of several batch sizes, so that batches meet in the same buffers
}
of_both_tiers = pytest.mark.parametrize("network", ["unet", "dit in graphs"])


@dataclass
class Group:
    """Sessions whose hops are computed together, one batch after the other."""

    states: list[FlowState]
    hops: list[tuple[int, ...]]  # tokens of each session's hop, batch by batch
    seed: int
    batch: FlowHops | None = None
    mels: list[list[Tensor]] = field(default_factory=list)

    def step(self, stage: FlowStage) -> bool:
        """One step, or the beginning of the next batch; False when all of them are done."""
        if self.batch is None:
            if len(self.mels) == len(self.hops):
                return False
            number = len(self.mels)
            is_last = number == len(self.hops) - 1
            counts = zip(self.states, self.hops[number], strict=True)
            self.batch = stage.begin([FlowHop(state, make_tokens(count, 10 * self.seed + number), is_last) for state, count in counts])
        else:
            self.batch.step()
        if not self.batch.steps_left:
            self.mels.append([mel for mel in self.batch.results if isinstance(mel, Tensor)])
            self.batch = None
        return True


def make_groups(stage: FlowStage, hops: Sequence[Sequence[tuple[int, ...]]]) -> list[Group]:
    groups = []
    for seed, sizes in enumerate(hops):
        states = [stage.open(make_prompt(PROMPTS[(seed + row) % len(PROMPTS)], seed=row)) for row in range(SESSIONS)]
        groups.append(Group(states, list(sizes), seed))
    return groups


sizes = st.lists(st.tuples(*[st.integers(0, 60)] * SESSIONS), min_size=ROUNDS, max_size=ROUNDS)


@pytest.mark.parametrize("network", NETWORKS)
@settings(max_examples=2)
@given(hops=st.lists(sizes, min_size=2, max_size=2), turns=st.lists(st.integers(0, 2), max_size=40), left=st.sampled_from([0, 0, 1]))
def test_any_interleaving_is_bit_equal(network: str, hops: list[list[tuple[int, ...]]], turns: list[int], left: int) -> None:
    """Groups take turns in any order, step by step; alone, each is computed in whole batches."""
    alone = NETWORKS[network](left_context_chunks=left)
    expected = make_groups(alone, hops)
    for group in expected:
        while group.step(alone):
            pass
    stage = NETWORKS[network](left_context_chunks=left)
    groups = make_groups(stage, hops)
    for turn in turns:
        groups[turn % len(groups)].step(stage)
        stage.check_integrity()
    while any([group.step(stage) for group in groups]):
        pass
    for found, exact in zip(groups, expected, strict=True):
        assert len(found.mels) == len(exact.mels) == ROUNDS
        for mels, others in zip(found.mels, exact.mels, strict=True):
            assert len(mels) == len(others) == SESSIONS
            assert all(torch.equal(mel, other) for mel, other in zip(mels, others, strict=True))
    stage.check_integrity()


@of_both_tiers
def test_a_failure_between_the_steps_stays_with_its_batch(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = NETWORKS[network]()
    expected = hop_mel(exact, exact.open(make_prompt(30)), make_tokens(40), True)
    stage = NETWORKS[network]()
    kept, lost = stage.open(make_prompt(30)), stage.open(make_prompt(31))
    first, second = stage.begin([FlowHop(kept, make_tokens(40), True)]), stage.begin([FlowHop(lost, make_tokens(40), False)])
    first.step()
    second.step()
    with monkeypatch.context() as patch:
        for name in ("advance", "begin"):
            patch.setattr(stage.runner.network, name, broken)
        if isinstance(stage.runner, DitGraphRunner):
            patch.setattr(stage.runner, "launch", broken)
        second.step()
    assert isinstance(second.finish()[0], EngineError) and lost.failure is not None
    found = first.finish()[0]
    assert isinstance(found, Tensor) and torch.equal(found, expected)
    lost.close()
    stage.check_integrity()
    assert stage.pool.available == stage.pool.total


def broken(*_: object) -> None:
    raise RuntimeError("device lost")


@of_both_tiers
def test_nan_in_an_interrupted_batch_stays_there(network: str) -> None:
    exact = NETWORKS[network]()
    expected = hop_mel(exact, exact.open(make_prompt(30)), make_tokens(40), True)
    stage = NETWORKS[network]()
    bad = make_prompt(20, seed=9)
    bad.speaker_embedding[:] = np.nan
    good, broken_one = stage.open(make_prompt(30)), stage.open(bad)
    first = stage.begin([FlowHop(broken_one, make_tokens(20), False)])
    first.step()
    second = stage.begin([FlowHop(good, make_tokens(40), True)])
    second.step()
    assert isinstance(first.finish()[0], EngineError)
    found = second.finish()[0]
    assert isinstance(found, Tensor) and torch.equal(found, expected)


def test_pages_of_a_batch_in_progress_are_not_taken_from_it() -> None:
    """Its session has borrowed them; a new session is refused until it has ended, and then gets them."""
    stage = make_stage(flow_state_mb=2, reserve_tokens=50)
    rest = stage.pool.total - 6
    stage.pool.take(stage.pool.open(rest, b"", 0), rest)  # another owner holds them
    greedy = stage.open(make_prompt(0))
    hop_mel(stage, greedy, make_tokens(163), False)
    others = [stage.open(make_prompt(0, 1))]
    pages = list(greedy.pages)
    batch = stage.begin([FlowHop(greedy, make_tokens(10), False)])
    batch.step()
    with pytest.raises(BusyError):
        stage.open(make_prompt(0, 2))
    assert greedy.pages == pages
    with pytest.raises(AssertionError):
        greedy.close()
    batch.finish()
    others.append(stage.open(make_prompt(0, 2)))
    assert greedy.has_forgotten
    for state in (greedy, *others):
        state.close()
