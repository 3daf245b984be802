"""Numbers of beginning turns become state of their slots. Kernel: ``begin_turns``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from bistream.text2token.engine import SamplingSpec, TokenSpace, TurnLimits
from bistream.text2token.graphs.batch import NUM_START_NUMBERS, write_starts
from bistream.text2token.graphs.cuda import kernels_turns
from bistream.text2token.sampler import SamplerState
from bistream.text2token.sequence import SlotReset, TurnStart
from tests.gpu.checks import DEVICE, Draw, poisoned, settled
from tests.gpu.text2token.bench import REAL as CONFIG
from tests.gpu.text2token.bench import SLOTS, copy_of, tensors_of

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def random_starts(turns: int, width: int) -> list[TurnStart]:
    """Every second turn begins a new sequence, with numbers of blocks around the 256 that the kernel copies at a time."""
    rng = np.random.default_rng(turns)
    space = TokenSpace.of(CONFIG)
    starts = []
    for turn, slot in enumerate(rng.permutation(SLOTS)[:turns].tolist()):
        forbidden, early = (frozenset(special for special in space.specials if rng.random() < 0.5) for _ in range(2))
        limits = TurnLimits(
            int(rng.integers(1, 10**6)), int(rng.integers(0, 50)), forbidden, early, space.fill if rng.random() < 0.5 else None
        )
        spec = SamplingSpec(
            float(rng.uniform(0.1, 1.0)), int(rng.integers(1, 500)), int(rng.integers(0, 65)), float(rng.uniform(0.0, 2.0)),
            float(rng.uniform(0.0, 10.0)), int(rng.integers(-(2**63), 2**63)),
        )  # fmt: skip
        blocks = tuple(rng.integers(0, 10**6, min(width, (255, 256, 257, 1, width)[turn // 2 % 5])).tolist())
        starts.append(TurnStart(slot, limits, limits.max_new_ids, SlotReset(str(turn), spec, blocks) if turn % 2 == 0 else None))
    return starts


def random_state(draw: Draw) -> SamplerState:
    state = SamplerState(SLOTS, TokenSpace.of(CONFIG), 64, DEVICE)
    for tensor in tensors_of(state).values():
        tensor.copy_(draw.integers(0, 2 if tensor.dtype == torch.bool else 1000, *tensor.shape))
    return state


def pinned(array: np.ndarray) -> Tensor:  # type: ignore[type-arg]
    return torch.from_numpy(array).pin_memory()


@pytest.mark.parametrize("width", [1, 16, 300])
@pytest.mark.parametrize("turns", [1, 2, 9, 64])
def test_begin_turns(turns: int, width: int) -> None:
    draw = Draw(turns, width)
    starts = random_starts(turns, width)
    state = random_state(draw)
    expected = copy_of(state)
    expected.start_turns(starts)
    table = poisoned(SLOTS + 1, width, dtype=torch.int32)
    expected_table = table.clone()
    for start in starts:
        if start.reset is not None:
            expected_table[start.slot, : len(start.reset.blocks)] = torch.tensor(start.reset.blocks, dtype=torch.int32)
    numbers = np.zeros((turns, NUM_START_NUMBERS), np.int64)
    blocks = np.zeros((turns, width), np.int32)
    write_starts(numbers, blocks, starts, state.space)
    with settled():
        kernels_turns.begin_turns[(turns,)](
            pinned(numbers), pinned(blocks), table, table.stride(0),
            state.top_p, state.top_k, state.temperature, state.win_size, state.min_repeats, state.key, state.num_decided,
            state.running.view(torch.uint8), state.num_new, state.max_new, state.min_new,
            state.forbidden.view(torch.uint8), state.forbidden_early.view(torch.uint8), state.record_on_length,
            SPECIALS=len(state.space.specials), FILLER=SLOTS, num_warps=1,
        )  # fmt: skip
    for name, tensor in tensors_of(expected).items():
        assert torch.equal(getattr(state, name), tensor), name
    assert torch.equal(table, expected_table)
