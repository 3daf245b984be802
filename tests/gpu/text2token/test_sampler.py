"""Repetition-aware sampling. Kernel: ``sample_rows``.

The kernel adds float32 probabilities in its own order, so a draw within ``CERTAIN`` of a boundary between two ids may go either way;
all other draws, and everything that follows from a choice, are exact.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from bistream.text2token.graphs.batch import NUM_FIELDS, RowField
from bistream.text2token.sampler import SamplerState, uniforms
from tests.fakes import decided
from tests.gpu.checks import Draw, assert_untouched, poison
from tests.gpu.text2token.bench import SLOTS, StepBench, copy_of, step_bench, tensors_of

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CERTAIN = 5e-6  # of the sum that is drawn from
TOP_KS = (25, 1, 2, 31, 32, 33, 50, 64, 200)
TEMPERATURES = (1.0, 0.0, 0.6, 1.7, 5e-5)


def drawn(weights: Tensor, uniform: float) -> tuple[int, float]:
    """Index drawn in proportion to weights, and how far from the next boundary it fell, as a share of their sum."""
    sums = weights.cumsum(0)
    threshold = uniform * sums[-1]
    return int((sums <= threshold).sum()), float((sums - threshold).abs().min() / sums[-1])


def choose(state: SamplerState, slot: int, logits: Tensor) -> tuple[int, float]:
    """Head row and distance from another result of one row. logits: float64 [vocab], finite."""
    specials = len(state.space.specials)
    early = state.forbidden_early[slot] & (state.num_new[slot] < state.min_new[slot])
    logits[-specials:].masked_fill_(state.forbidden[slot] | early, -math.inf)
    temperature = float(state.temperature[slot])
    if temperature < 1e-4:
        return int((logits == logits.max()).nonzero()[0]), 1.0
    weights = torch.exp((logits - logits.max()) / temperature)
    probs, order = torch.sort(weights / weights.sum(), descending=True, stable=True)  # ties: the lower id first
    before = probs.cumsum(0) - probs
    top_p, top_k = float(state.top_p[slot]), int(state.top_k[slot])
    taken = (before < top_p) & (torch.arange(len(probs), device=probs.device) < top_k)
    first, second = uniforms(state.key[slot : slot + 1], state.num_decided[slot : slot + 1])[0].tolist()
    rank, margin = drawn(probs[taken], first)
    doubtful = probs[:top_k][(before[:top_k] - top_p).abs() < CERTAIN]  # candidates that may be taken or not
    margin -= float(doubtful.sum() / probs[taken].sum())
    chosen = int(order[rank])
    ids = decided(state, slot)
    window = min(int(state.win_size[slot]), int(state.num_decided[slot]))
    if ids[len(ids) - window :].count(chosen) >= int(state.min_repeats[slot]):
        weights[chosen] = 0.0
        chosen, second_margin = drawn(weights, second)
        margin = min(margin, second_margin)
    return chosen, margin


def give_scores(bench: StepBench, draw: Draw, rows: int) -> Tensor:
    """Flat, peaked, tied and non-finite scores. float32 [rows, vocab]."""
    size = torch.tensor([0.1, 3.0, 8.0], device=draw.generator.device)[torch.arange(rows) // 3 % 3]
    logits = draw.normal(rows, bench.config.num_scores) * size[:, None]
    logits[1::4] = (logits[1::4] * 4).round() / 4
    logits[:, -3:] += 4.0
    logits[5::16] = 0.0
    logits[6::16, 100] = math.nan
    logits[7::16, 7] = math.inf
    logits[8::16, 9] = -math.inf
    logits[9::32] = -math.inf
    bench.kernels.buffers.scores[:rows, : bench.config.num_scores] = logits
    return logits


def give_state(bench: StepBench, draw: Draw, slots: Tensor, logits: Tensor) -> SamplerState:
    """Random settings and history of the rows' slots; their latest ids are often what they will choose next."""
    state, count = bench.step.state, SLOTS + 1
    row = torch.zeros(count, dtype=torch.int64, device=slots.device)
    row[slots] = torch.arange(len(slots), device=slots.device)

    def pick(values: tuple[float, ...], every: int) -> Tensor:
        return torch.tensor(values, device=slots.device)[row // every % len(values)]

    state.top_p.copy_(pick((0.8, 1.0, 0.3), 1))
    state.top_k.copy_(pick(TOP_KS, 2))
    state.temperature.copy_(pick(TEMPERATURES, 1))
    state.win_size.copy_(pick((10, 0, 64, 1), 3))
    state.min_repeats.copy_(pick((1, 2, 0, 7), 5))
    state.key.copy_(draw.integers(-(2**61), 2**61, count, dtype=torch.int64))
    state.num_decided.copy_(draw.integers(0, 200, count, dtype=torch.int64))
    state.history.copy_(draw.integers(0, bench.config.num_scores, count, 64, dtype=torch.int64))
    likely = torch.nan_to_num(logits).argmax(dim=1)
    for back in (1, 3):
        state.history[slots, (state.num_decided[slots] - back) % 64] = likely
    state.last_id.copy_(draw.integers(0, 1000, count, dtype=torch.int64))
    state.running.copy_(draw.uniform(0.0, 1.0, count) < 0.9)
    state.num_new.copy_(draw.integers(0, 10, count, dtype=torch.int64))
    state.max_new.copy_(state.num_new + pick((1, 2, 50), 1).long())
    state.min_new.copy_(draw.integers(0, 20, count, dtype=torch.int64))
    state.forbidden.copy_(draw.uniform(0.0, 1.0, count, 3) < 0.3)
    state.forbidden_early.copy_(draw.uniform(0.0, 1.0, count, 3) < 0.7)
    state.record_on_length.copy_(torch.where(draw.uniform(0.0, 1.0, count) < 0.5, -1, bench.config.num_scores - 1))
    return state


def check(name: str, rows: int, seed: int) -> None:
    draw = Draw(name, rows, seed)
    bench = step_bench(name)
    slots = draw.permutation(SLOTS)[:rows]
    samples = draw.uniform(0.0, 1.0, rows) < 0.9
    samples[0] = True
    logits = give_scores(bench, draw, rows)
    state = give_state(bench, draw, slots, logits)
    fields = torch.zeros((rows, NUM_FIELDS), dtype=torch.int32, device=slots.device)
    fields[:, RowField.SLOT], fields[:, RowField.SAMPLES] = slots.int(), samples.int()
    poison(bench.kernels.buffers.chosen)
    expected = copy_of(state)
    not_finite = ~torch.isfinite(torch.logsumexp(logits, dim=-1))
    choices = [choose(state, slot, row.double()) for slot, row in zip(slots.tolist(), logits.where(~not_finite[:, None], 0.0), strict=True)]
    chosen = torch.tensor([choice for choice, _ in choices], device=slots.device)
    certain = not_finite | (torch.tensor([margin for _, margin in choices], device=slots.device) > CERTAIN)
    recorded = expected.record(slots[samples], chosen[samples], not_finite[samples])
    found = bench.kernels.sample(fields)
    torch.cuda.synchronize()
    clear = certain[samples]
    assert torch.equal(found[samples][clear], recorded[clear].int())
    assert ((found[samples] >= -2) & (found[samples] < bench.config.num_scores)).all()
    assert_untouched(found[~samples], bench.kernels.buffers.chosen[rows:])
    others = torch.ones(SLOTS + 1, dtype=torch.bool, device=slots.device)
    others[slots[~certain & samples]] = False
    for field, tensor in tensors_of(expected).items():
        assert torch.equal(getattr(state, field)[others], tensor[others]), field
    assert (~certain).sum() <= 1 + rows // 10, "too few choices are compared"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rows", [1, 2, 3, 16, 31, 64, 128, 129, 200, 320])
def test_sample_rows(rows: int, seed: int) -> None:
    check("real", rows, seed)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["smallest", "largest"])
@pytest.mark.parametrize("rows", [1, 33, 130])
def test_sample_rows_of_other_vocabularies(name: str, rows: int, seed: int) -> None:
    """123 scores, and 4096: a power of two."""
    check(name, rows, seed)
