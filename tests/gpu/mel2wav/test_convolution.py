"""Sums of convolutions, as the product launches them on its own weights. Kernel: ``sum_convolutions``.

``tests/gpu/test_vocoder_cuda.py`` has sums of other shapes and sizes.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gpu.checks import BOUNDS, INTERPRETED, Draw, assert_close

pytest.importorskip("triton")
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA GPU, or Triton's interpreter", allow_module_level=True)

from tests.gpu.mel2wav.bench import BATCHES, CONFIG, DTYPE, Area, Rate, ResBlock, VocoderBench, doubled, launch, snake

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

BOUND = BOUNDS[DTYPE]
LAYERS = len(CONFIG.resblock_dilation_sizes[0])
batches = pytest.mark.parametrize("batch", sorted(BATCHES))
stages = pytest.mark.parametrize("stage", range(len(CONFIG.upsample_rates)))
layers = pytest.mark.parametrize("layer", range(LAYERS))
# slots of a stage, as in ``launches``
X, ACTIVES, HIDDENS, STREAMS = 0, (1, 2, 3), (4, 5, 6), (7, 8, 9)


def convolved(module: nn.Module, rows: list[Tensor]) -> list[Tensor]:
    """float64 [length, channels] of each row; zeros around it."""
    weight, bias = doubled(module)
    assert isinstance(module, nn.Conv1d)
    return [F.conv1d(row.double().T[None], weight, bias, padding=module.padding, dilation=module.dilation)[0].T for row in rows]


def added(*terms: list[Tensor]) -> list[Tensor]:
    return [torch.stack([row.double() for row in rows]).sum(0) for rows in zip(*terms, strict=True)]


def activated(rows: list[Tensor], activation: nn.Module) -> list[Tensor]:
    alpha = activation.alpha
    assert isinstance(alpha, Tensor)
    return [snake(row, alpha.double()) for row in rows]


def assert_rows(bench: VocoderBench, slot: Tensor, rate: Rate, rows: list[Tensor], bound: float = BOUND) -> None:
    """Rows are right, gaps are zero."""
    gap = torch.ones(bench.extent(rate), dtype=torch.bool, device=slot.device)
    for (start, length), row in zip(bench.starts(rate), rows, strict=True):
        assert_close(slot[start : start + length], row, bound)
        gap[start : start + length] = False
    assert not slot[: len(gap)][gap].any()


def _kernel_size(block: ResBlock) -> int:
    conv = block.convs1[0]
    assert isinstance(conv, nn.Conv1d)
    return conv.kernel_size[0]


def blocks_of(bench: VocoderBench, stage: int) -> list[ResBlock]:
    """Longest kernel first."""
    count = len(CONFIG.resblock_kernel_sizes)
    blocks = [block for block in bench.hift.resblocks[stage * count : (stage + 1) * count] if isinstance(block, ResBlock)]
    return sorted(blocks, key=_kernel_size, reverse=True)


def prepared(batch: str, *parameters: object) -> tuple[VocoderBench, Draw]:
    draw = Draw(batch, *parameters)
    bench = VocoderBench(batch, draw)
    bench.mark_real()
    return bench, draw


def area_of(bench: VocoderBench, stage: int) -> tuple[Area, Rate]:
    return bench.call._sources[stage][0], bench.space.rates[stage + 1]


@layers
@stages
@batches
def test_first_convolutions_of_the_blocks(batch: str, stage: int, layer: int) -> None:
    bench, draw = prepared(batch, stage, layer)
    area, rate = area_of(bench, stage)
    given = [bench.fill_rows(draw, area.slot(ACTIVES[block]), rate) for block in range(3)]
    launch(bench.call._blocks[stage][2 * layer].launch)
    for number, block in enumerate(blocks_of(bench, stage)):
        rows = activated(convolved(block.convs1[layer], given[number]), block.activations2[layer])
        assert_rows(bench, area.slot(HIDDENS[number]), rate, rows)


@pytest.mark.parametrize("layer", range(LAYERS - 1))
@stages
@batches
def test_second_convolutions_of_the_blocks(batch: str, stage: int, layer: int) -> None:
    bench, draw = prepared(batch, stage, layer)
    area, rate = area_of(bench, stage)
    given = [bench.fill_rows(draw, area.slot(HIDDENS[block]), rate) for block in range(3)]
    streams = (X,) * 3 if layer == 0 else STREAMS
    residuals = [bench.fill_rows(draw, area.slot(slot), rate) for slot in streams]
    if layer == 0:
        residuals = [residuals[-1]] * 3
    launch(bench.call._blocks[stage][2 * layer + 1].launch)
    for number, block in enumerate(blocks_of(bench, stage)):
        rows = added(convolved(block.convs2[layer], given[number]), residuals[number])
        assert_rows(bench, area.slot(STREAMS[number]), rate, rows)
        assert_rows(bench, area.slot(ACTIVES[number]), rate, activated(rows, block.activations1[layer + 1]))


@stages
@batches
def test_the_sum_of_the_blocks(batch: str, stage: int) -> None:
    """All blocks in one sum."""
    bench, draw = prepared(batch, stage)
    area, rate = area_of(bench, stage)
    given = [bench.fill_rows(draw, area.slot(HIDDENS[block]), rate) for block in range(3)]
    residuals = [bench.fill_rows(draw, area.slot(STREAMS[block]), rate) for block in range(3)]
    launch(bench.call._blocks[stage][-1].launch)
    sums = [convolved(block.convs2[-1], rows) for block, rows in zip(blocks_of(bench, stage), given, strict=True)]
    slope = 0.01 if stage == len(CONFIG.upsample_rates) - 1 else CONFIG.lrelu_slope
    rows = [F.leaky_relu(row / 3, slope) for row in added(*sums, *residuals)]
    assert_rows(bench, bench.space.stage_in.view(-1, area.memory.shape[1]), rate, rows)


@layers
@stages
@batches
def test_the_block_of_the_source(batch: str, stage: int, layer: int) -> None:
    """Its last convolution also adds the upsampled mel and applies the activations of all other blocks."""
    bench, draw = prepared(batch, stage, layer)
    area, rate = area_of(bench, stage)
    block = bench.hift.source_resblocks[stage]
    assert isinstance(block, ResBlock)
    _, launches = bench.call._sources[stage]
    given = bench.fill_rows(draw, area.slot(ACTIVES[0]), rate)
    launch(launches[2 * layer].launch)
    assert_rows(bench, area.slot(HIDDENS[0]), rate, activated(convolved(block.convs1[layer], given), block.activations2[layer]))

    given = bench.fill_rows(draw, area.slot(HIDDENS[0]), rate)
    residuals = [bench.fill_rows(draw, area.slot(X), rate)]
    is_end = layer == LAYERS - 1
    if is_end:
        residuals.append(bench.fill_rows(draw, area.slot(STREAMS[0]), rate))
    launch(launches[2 * layer + 1].launch)
    rows = added(convolved(block.convs2[layer], given), *residuals)
    assert_rows(bench, area.slot(X), rate, rows)
    following = [other.activations1[0] for other in blocks_of(bench, stage)] if is_end else [block.activations1[layer + 1]]
    for slot, activation in zip(ACTIVES, following, strict=False):
        assert_rows(bench, area.slot(slot), rate, activated(rows, activation))


@batches
def test_the_first_convolution_of_the_decoder(batch: str) -> None:
    """80 bins padded to 128 channels."""
    bench, draw = prepared(batch)
    rate, bins = bench.space.rates[0], CONFIG.in_channels
    mel = bench.space.mel_parts[: bench.call._capacities[0]]
    bench.fill_rows(draw, mel, rate)
    mel[: bench.extent(rate), bins:] = 0.0
    given = [mel[start : start + length, :bins] for start, length in bench.starts(rate)]
    launch(bench.call._pre.launch)
    rows = [F.leaky_relu(row, CONFIG.lrelu_slope) for row in convolved(bench.hift.conv_pre, given)]
    assert_rows(bench, bench.space.stage_in.view(-1, CONFIG.base_channels), rate, rows)


@pytest.mark.parametrize("number", range(5))
@batches
def test_the_f0_predictor(batch: str, number: int) -> None:
    """Input, weights and result are pairs of 16-bit numbers: nearly float32."""
    bench, draw = prepared(batch, number)
    rate, capacity = bench.space.rates[0], bench.call._capacities[0]
    conv = list(bench.hift.f0_predictor.condnet.values())[number]
    assert isinstance(conv, nn.Conv1d) and conv.bias is not None
    memory = bench.space.mel_parts if number == 0 else bench.space.f0_parts
    read, write = (2 if number % 2 == 0 and number else 0), (0 if number % 2 == 0 else 2)  # two slots each, alternating
    high, low = memory[read * capacity : (read + 1) * capacity], memory[(read + 1) * capacity : (read + 2) * capacity]
    for part in (high, low):
        bench.fill_rows(draw, part, rate)
        part[: bench.extent(rate), conv.in_channels :] = 0.0
    low *= 2.0**-12
    launch(bench.call._f0[number].launch)
    found = bench.space.f0_parts[write * capacity :]
    for start, length in bench.starts(rate):
        given = (high[start : start + length].double() + low[start : start + length].double())[:, : conv.in_channels]
        exact = F.elu(F.conv1d(given.T[None], conv.weight.double(), conv.bias.double(), padding=1))[0].T
        result = found[start : start + length].double() + found[capacity + start : capacity + start + length].double()
        assert_close(result, exact, 2e-6)
