"""A step of the language model whose kernels are launched one by one, on buffers that a test fills and reads.

All host code that the tests of this folder need is imported here, except for the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bistream.checkpoints.config import LanguageModelConfig
from bistream.text2token.cuda.batch import LAST_SAMPLED, NO_POSITION, NUM_FIELDS, NUM_START_NUMBERS, RowField, write_starts
from bistream.text2token.cuda.launches import CudaStep
from bistream.text2token.cuda.memory import BLOCK_SIZE, CudaCache, StepBuffers, packed_index
from bistream.text2token.cuda.tuning import MEASURED_BEST, Tuning
from bistream.text2token.cuda.weights import pack_weights
from bistream.text2token.engine import SamplingSpec, TokenSpace, TurnLimits
from bistream.text2token.sampler import DEFAULT_HISTORY, SamplerState, uniforms
from bistream.text2token.sequence import SlotReset, TurnStart
from bistream.text2token.weights import ModelWeights, build_weights
from tests.gpu.checks import DEVICE, SENTINEL, SUM_BOUND, Draw, assert_close, assert_untouched, poison, settled
from tests.unit.text2token.tiny import random_state

__all__ = [
    "CASES", "DEPTH", "LAST_SAMPLED", "MEASURED_BEST", "NUM_FIELDS", "NUM_START_NUMBERS", "POSITIONS", "REAL", "SLOTS", "USED_SLOTS",
    "RowField", "SamplerState", "SamplingSpec", "SlotReset", "StepBench", "TokenSpace", "Tuning", "TurnLimits", "TurnStart", "cases",
    "copy_of", "folded", "fresh_bench", "from_tiles", "give_positions", "pack", "rounded", "sums_of_squares", "tensors_of", "to_tiles",
    "uniforms", "unpack", "write_starts",
]  # fmt: skip

SQUARE_SCALE = 2.0**24  # squares are summed as multiples of 2**-24
SLOTS = 320
USED_SLOTS = 5  # that own blocks of the cache
BLOCKS = 16  # of a sequence
POSITIONS = BLOCKS * BLOCK_SIZE
MAX_ROWS = 512
DEPTH = 8

REAL = LanguageModelConfig(num_hidden_layers=2, text_vocab_size=500, max_position_embeddings=4096)
SMALLEST = LanguageModelConfig(
    hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    text_vocab_size=500, speech_token_size=120, max_position_embeddings=4096,
)  # fmt: skip
LARGEST = LanguageModelConfig(
    hidden_size=1024, intermediate_size=5120, num_hidden_layers=2, num_attention_heads=16, num_key_value_heads=2,
    text_vocab_size=500, speech_token_size=4093, max_position_embeddings=4096,
)  # fmt: skip
CONFIGS = {"real": REAL, "smallest": SMALLEST, "largest": LARGEST}

# Around the tiles of the matrix instructions, the row counts at which another kernel takes over, and the buckets' limits
ROWS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129, 192, 255, 256, 257, 320)
SOME_ROWS = (1, 8, 13, 16, 17, 64, 65, 129)
CASES = [("real", rows) for rows in ROWS] + [(name, rows) for name in ("smallest", "largest") for rows in SOME_ROWS]


def cases(low: int, high: int) -> list[tuple[str, int]]:
    """Configuration and rows, low .. high."""
    return [(name, rows) for name, rows in CASES if low <= rows <= high]


def _places(columns: int) -> Tensor:
    """Where the columns of an activation are stored in packed order."""
    column = torch.arange(columns, device=DEVICE)
    return column // 32 * 32 + packed_index(column % 32)


def pack(plain: Tensor) -> Tensor:
    """Columns in the order of the kernels for few rows."""
    packed = torch.empty_like(plain)
    packed[..., _places(plain.shape[-1])] = plain
    return packed


def unpack(packed: Tensor) -> Tensor:
    return packed[..., _places(packed.shape[-1])]


def to_tiles(matrix: Tensor) -> Tensor:
    """[..., 64, 64] -> [..., 4096]: the keys (position, dimension) or values (dimension, position) of a block of the cache."""
    lines = torch.unflatten(torch.unflatten(pack(matrix), -2, (8, 8)), -1, (2, 32))
    return lines.transpose(-3, -2).flatten(-4)


def from_tiles(tiles: Tensor) -> Tensor:
    """The reverse of ``to_tiles``."""
    lines = torch.unflatten(tiles, -1, (8, 2, 8, 32)).transpose(-3, -2)
    return unpack(lines.flatten(-2).flatten(-3, -2))


class _RecordingStep(CudaStep):
    """Records which kernel it launched last."""

    kernel: Any = None

    def _run(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        self.kernel = kernel
        super()._run(kernel, grid, *arguments, **options)


class StepBench:
    """Random weights, buffers full of poison. A launch returns the kernel that the host code chose."""

    def __init__(self, config: LanguageModelConfig, tuning: Tuning) -> None:
        self.config = config
        self.tuning = tuning
        self.weights: ModelWeights = build_weights(random_state(config), config, DEVICE, torch.float32)
        self.num_blocks = USED_SLOTS * BLOCKS + 3
        self.cache = CudaCache(config, self.num_blocks, DEVICE)
        self.state = SamplerState(SLOTS, TokenSpace.of(config), DEFAULT_HISTORY, DEVICE)
        self.table = torch.zeros((SLOTS + 1, BLOCKS), dtype=torch.int32, device=DEVICE)
        self.buffers = StepBuffers(config, MAX_ROWS, DEPTH, self.table, DEVICE)
        self.packed = pack_weights(self.weights, config, DEVICE)
        self.step = _RecordingStep(config, self.packed, self.cache, self.state, self.buffers, tuning)
        self.vocab = config.speech_token_size + 3
        self.reset(Draw())

    def reset(self, draw: Draw) -> None:
        """Poison everywhere, no live row, another block table."""
        buffers = self.buffers
        poison(
            self.cache.blocks, buffers.x, buffers.xb, buffers.squares, buffers.query, buffers.attended, buffers.hidden, buffers.down_part,
            buffers.logits, buffers.results, buffers.rows,
        )  # fmt: skip
        buffers.rows[RowField.POSITION] = NO_POSITION
        buffers.rows[RowField.SLOT] = SLOTS
        buffers.arrived.zero_()
        buffers.clock.zero_()
        self.table[:USED_SLOTS] = draw.permutation(self.num_blocks)[: USED_SLOTS * BLOCKS].view(USED_SLOTS, BLOCKS).int()

    def begin(self, rows: int) -> Any:
        return self._launch(self.step._begin, rows)

    def qkv(self, index: int, rows: int) -> Any:
        return self._launch(self.step._qkv, index, self.packed.layers[index], rows)

    def attend(self, index: int, rows: int) -> Any:
        return self._launch(self.step._attend, index, rows)

    def output(self, index: int, rows: int) -> Any:
        return self._launch(self.step._output, index, self.packed.layers[index], rows)

    def gate_up(self, index: int, rows: int) -> Any:
        return self._launch(self.step._gate_up, index, self.packed.layers[index], rows)

    def down(self, index: int, rows: int) -> Any:
        return self._launch(self.step._down, index, self.packed.layers[index], rows)

    def head(self, rows: int) -> Any:
        return self._launch(self.step._head, rows)

    def sample(self, rows: int) -> Any:
        return self._launch(self.step._sample, rows)

    def _launch(self, method: Callable[..., None], *arguments: Any) -> Any:
        with settled():
            method(*arguments)
        return self.step.kernel

    def give_normed(self, draw: Draw, norm: int, rows: int, packed: bool) -> Tensor:
        """Random input of a projection after norm number ``norm``; returns what the projection multiplies, float64 [rows, hidden]."""
        hidden = self.config.hidden_size
        xb = draw.normal(rows, hidden, dtype=torch.bfloat16)
        squares = (draw.uniform(0.2, 5.0, rows).double() * (hidden * SQUARE_SCALE)).long()
        self.buffers.xb[:rows] = pack(xb) if packed else xb
        self.buffers.squares[norm, :rows] = squares
        mean = squares.double() / (hidden * SQUARE_SCALE)
        return xb.double() * (mean + self.config.rms_norm_eps).rsqrt()[:, None]

    def give_residual(self, draw: Draw, rows: int) -> Tensor:
        """A random residual stream, float64 [rows, hidden]."""
        x = draw.normal(rows, self.config.hidden_size)
        self.buffers.x[:rows] = x
        return x.double()

    def check_residual(self, norm: int, rows: int, exact: Tensor, packed: bool) -> None:
        """The stream, its bfloat16 copy and the sums of squares of norm number ``norm``; and that nothing else was written."""
        buffers = self.buffers
        x, xb = buffers.x[:rows], buffers.xb[:rows]
        assert_close(x, exact, SUM_BOUND)
        assert torch.equal(unpack(xb) if packed else xb, x.bfloat16())
        assert torch.equal(buffers.squares[norm, :rows], SENTINEL + sums_of_squares(x)), "they are added to the previous value"
        others = torch.arange(len(buffers.squares), device=DEVICE) != norm
        assert_untouched(buffers.x[rows:], buffers.xb[rows:], buffers.squares[norm, rows:], buffers.squares[others])


def sums_of_squares(x: Tensor) -> Tensor:
    """float32 [rows, hidden] -> int64 [rows], every square a multiple of 2**-24."""
    return (x * x * SQUARE_SCALE).round().long().sum(dim=1)


def folded(matrix: Tensor, norm: Tensor) -> Tensor:
    """A projection with the preceding norm folded in, rounded as the kernels read it, float64."""
    return (matrix * norm).bfloat16().double()


def rounded(matrix: Tensor) -> Tensor:
    return matrix.bfloat16().double()


@cache
def step_bench(name: str, tuning: Tuning = MEASURED_BEST) -> StepBench:
    """One per configuration; tests reset it."""
    return StepBench(CONFIGS[name], tuning)


def fresh_bench(draw: Draw, name: str, tuning: Tuning = MEASURED_BEST) -> StepBench:
    bench = step_bench(name, tuning)
    bench.reset(draw)
    return bench


def give_positions(bench: StepBench, draw: Draw, rows: int) -> tuple[Tensor, Tensor]:
    """Slot and position of every row, int64; all distinct, block boundaries among them; some rows are padding."""
    edges = torch.tensor([0, BLOCK_SIZE - 1, BLOCK_SIZE, POSITIONS - 1], device=DEVICE)
    others = draw.permutation(POSITIONS)
    position = torch.cat([edges, others[~torch.isin(others, edges)]])[:rows]
    if rows > 4:
        position[4::5] = NO_POSITION
    slot = torch.where(position == NO_POSITION, SLOTS, torch.arange(rows, device=DEVICE) % USED_SLOTS)
    bench.buffers.rows[RowField.SLOT, :rows] = slot.int()
    bench.buffers.rows[RowField.POSITION, :rows] = position.int()
    return slot, position


def copy_of(state: SamplerState) -> SamplerState:
    """The same numbers in memory of its own."""
    copy = SamplerState(len(state.session_ids) - 1, state.space, state.history_size, state.device)
    for name, tensor in tensors_of(state).items():
        getattr(copy, name).copy_(tensor)
    return copy


def tensors_of(state: SamplerState) -> dict[str, Tensor]:
    return {name: value for name, value in vars(state).items() if isinstance(value, Tensor)}
