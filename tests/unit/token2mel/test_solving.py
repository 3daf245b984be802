"""Fixed buffers that batches of different sizes share, as in the tier of our kernels: every batch finds its own numbers again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bistream.errors import EngineError
from bistream.token2mel.batching import Span
from bistream.token2mel.solving import FAILED, BufferedGroup, FixedBuffers, SpanBatch, SpanGroup, solver_parts
from tests.unit.token2mel.flow_fixtures import make_prompt

STEPS = 5


class SharingRunner:
    """A ``PartsRunner`` whose batches of any size use the first numbers of one buffer; a part depends on all of them and on its number."""

    parts = solver_parts(STEPS, True)

    def __init__(self) -> None:
        self.buffer = torch.zeros(16)
        self.shared = FixedBuffers()

    def group(self, size: int, seed: int) -> SpanGroup:
        spans = [Span([seed], 0, 1, make_prompt(0))] * size
        return BufferedGroup(self, size, spans, self.shared, [self.buffer[:size]])

    def load(self, call: int, spans: Sequence[Span]) -> None:
        self.buffer[:call] = torch.arange(call) + 100.0 * spans[0].tokens[0]

    def launch(self, call: int, number: int) -> None:
        if self.buffer[0] < 0:
            raise RuntimeError("device lost")
        self.buffer[:call] = 0.5 * self.buffer[:call].flip(0) + number

    def results(self, call: int, spans: Sequence[Span]) -> list[Tensor | EngineError]:
        return list(self.buffer[:call].clone().unbind())


def batch(runner: SharingRunner, groups: Sequence[tuple[int, int]]) -> SpanBatch:
    """groups: (size, seed) of each."""
    places, made = 0, []
    for size, seed in groups:
        made.append((range(places, places + size), runner.group(size, seed)))
        places += size
    return SpanBatch.of(places, made)


groups = st.lists(st.tuples(st.integers(1, 16), st.integers(0, 9)), min_size=1, max_size=3)


@given(st.lists(groups, min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=60))
def test_every_batch_ends_as_alone(batches: list[list[tuple[int, int]]], turns: list[int]) -> None:
    expected = [batch(SharingRunner(), each).finish() for each in batches]
    runner = SharingRunner()
    running = [batch(runner, each) for each in batches]
    for turn in turns:
        running[turn % len(running)].step()
    for each, exact in zip(running, expected, strict=True):
        assert each.finish() == exact and each.steps_left == 0


@given(st.integers(1, 4))
def test_a_group_that_fails_leaves_the_buffers_to_the_others(steps: int) -> None:
    runner = SharingRunner()
    lost, kept = batch(runner, [(4, 1), (2, 3)]), batch(runner, [(8, 2)])
    for _ in range(steps):
        lost.step()
        kept.step()
    lost.step()
    runner.buffer[0] = -1.0
    for _ in range(STEPS - steps - 1):
        lost.step()
    results = lost.finish()
    if steps < STEPS - 1:
        assert [getattr(result, "sentence", None) for result in results[:4]] == [FAILED] * 4
    assert results[4:] == batch(SharingRunner(), [(2, 3)]).finish()
    assert kept.finish() == batch(SharingRunner(), [(8, 2)]).finish()


def test_parts() -> None:
    assert solver_parts(3, False) == (range(3),)
    assert solver_parts(3, True) == (range(0, 1), range(1, 2), range(2, 3))
