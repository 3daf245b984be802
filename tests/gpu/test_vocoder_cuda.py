"""The vocoder on CUDA: sums of convolutions exact, close to the plain network in any batch, reused slots equal to new ones.

Tolerances are signal to error in dB; in 16 bit the plain network itself is some 55 dB from float32.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.checkpoints.config import CheckpointConfig
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.mel2wav.stage import VocoderHop, VocoderStage
from bistream.types import FloatArray
from tests.unit.mel2wav.tiny import random_state as vocoder_state
from tests.unit.mel2wav.tiny import voiced_mel

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from bistream.mel2wav.cuda.launches_convolution import Area, SumLaunch, Use
from bistream.mel2wav.cuda.runner import CudaVocoderStage
from bistream.mel2wav.cuda.weights import F0_SCALE, split_sum
from bistream.mel2wav.cuda.weights_sums import ConvolutionSums, Part, pack_sums

# the GPU host's torch and triton are not the pinned versions: ignore their warnings
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

SIZES = CheckpointConfig()


@cache
def model_dir() -> str:
    directory = tempfile.mkdtemp(prefix="bistream-gpu-")
    torch.save(vocoder_state(SIZES.vocoder), Path(directory) / "hift.pt")
    return directory


def config(**changes: object) -> RuntimeConfig:
    base = RuntimeConfig(model_dir=model_dir(), device="cuda", max_sessions=32, kernels="plain")
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def snr_db(found: Tensor, exact: Tensor) -> float:
    assert found.shape == exact.shape and torch.isfinite(found).all()
    return float(10 * torch.log10(exact.double().square().sum() / (found.double() - exact.double()).square().sum().clamp(min=1e-30)))


GAP = 32


class Rows:
    """Rows of random values with gaps of zeros; everything that no kernel may read is NaN."""

    def __init__(self, lengths: Sequence[int], channels: int, slots: int, seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        self.spans = []
        end = GAP
        for length in lengths:
            self.spans.append((end, end + length))
            end += length + GAP
        capacity = -(-end // 256) * 256
        memory = torch.full((slots, capacity, channels), math.nan, device="cuda", dtype=torch.float16)
        real = torch.zeros(capacity, dtype=torch.int8, device="cuda")
        memory[:, :end] = 0
        for begin, stop in self.spans:
            memory[:, begin:stop] = torch.randn(slots, stop - begin, channels, generator=generator, device="cuda").half()
            real[begin:stop] = 1
        self.memory = memory
        self.end = end
        self.area = Area(memory.view(-1, channels), capacity, real, torch.tensor([end], dtype=torch.int32, device="cuda"))

    def empty_like(self, channels: int, slots: int) -> tuple[Tensor, Area]:
        memory = torch.full((slots, self.area.capacity, channels), math.nan, device="cuda", dtype=torch.float16)
        return memory, dataclasses.replace(self.area, memory=memory.view(-1, channels))

    def check(self, found: Tensor, exact: list[Tensor]) -> None:
        """found: a slot; exact: [length, channels] per row. In 16 bit, and zeros in the gaps."""
        for (begin, stop), row in zip(self.spans, exact, strict=True):
            assert snr_db(found[begin:stop].float(), row) > 66.0
        assert not found[: self.end][self.area.real[: self.end] == 0].any()


def conv_rows(rows: Rows, slot: int, weight: Tensor, dilation: int) -> list[Tensor]:
    """weight: float32 [outputs, taps, channels]."""
    pad = (weight.shape[1] - 1) * dilation // 2
    given = [rows.memory[slot, begin:stop].double().T[None] for begin, stop in rows.spans]
    return [F.conv1d(x, weight.double().transpose(1, 2), dilation=dilation, padding=pad)[0].T.float() for x in given]


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    return x + torch.sin(x * alpha) ** 2 / alpha


KERNELS = ((11, 5), (7, 3), (3, 1))
LENGTHS = {"few": (70, 513, 1), "some": (2000, 31, 900, 4500), "many": (7921,) * 12}


def random_sums(channels: int, seed: int, groups: bool) -> tuple[ConvolutionSums, list[Tensor], Tensor, Tensor]:
    """Convolutions of KERNELS side by side (groups) or in one sum; their weights as the tensor cores read them, bias, alphas."""
    generator = torch.Generator("cuda").manual_seed(seed)
    shapes = [(channels, taps, channels) for taps, _ in KERNELS]
    weights = [torch.randn(shape, generator=generator, device="cuda") / math.sqrt(shape[1] * channels) for shape in shapes]
    weights = [weight.half().float() for weight in weights]
    members = [
        (weight, Part(taps, dilation, (taps - 1) * dilation // 2, 0 if groups else use))
        for use, (weight, (taps, dilation)) in enumerate(zip(weights, KERNELS, strict=True))
    ]
    count = len(KERNELS) if groups else 1
    bias = torch.randn(count, channels, generator=generator, device="cuda")
    alphas = 0.5 + torch.rand(len(KERNELS), channels, generator=generator, device="cuda")
    sums = pack_sums([[member] for member in members] if groups else [members], bias, alphas, torch.float16)
    return sums, weights, bias, alphas


@pytest.mark.parametrize("lengths", sorted(LENGTHS))
@pytest.mark.parametrize("channels", [64, 128, 256])
def test_convolutions_side_by_side(channels: int, lengths: str) -> None:
    rows = Rows(LENGTHS[lengths], channels, 6, 1)
    sums, weights, bias, alphas = random_sums(channels, 2, groups=True)
    memory, target = rows.empty_like(channels, 6)
    uses = [[Use(group, (3 + group,), group, (3 + group,))] for group in range(3)]
    for _ in range(2):
        SumLaunch(sums, rows.area, target, uses).launch()
    for group in range(3):
        exact = conv_rows(rows, group, weights[group], KERNELS[group][1])
        kept = [rows.memory[3 + group, begin:stop].float() for begin, stop in rows.spans]
        exact = [row + bias[group] + residual for row, residual in zip(exact, kept, strict=True)]
        rows.check(memory[group], exact)
        rows.check(memory[3 + group], [snake(row, alphas[group]) for row in exact])


@pytest.mark.parametrize("lengths", sorted(LENGTHS))
@pytest.mark.parametrize("channels", [64, 128, 256])
def test_convolutions_in_one_sum(channels: int, lengths: str) -> None:
    rows = Rows(LENGTHS[lengths], channels, 6, 3)
    sums, weights, bias, _ = random_sums(channels, 4, groups=False)
    memory, target = rows.empty_like(channels, 1)
    uses = [[Use(part, (3 + part,), 0) for part in range(3)]]
    SumLaunch(sums, rows.area, target, uses, "leaky", 1 / 3, 0.1).launch()
    total = [torch.zeros(stop - begin, channels, device="cuda") for begin, stop in rows.spans]
    for part in range(3):
        exact = conv_rows(rows, part, weights[part], KERNELS[part][1])
        for row, (begin, stop) in enumerate(rows.spans):
            total[row] += exact[row] + rows.memory[3 + part, begin:stop].float()
    rows.check(memory[0], [F.leaky_relu((row + bias[0]) / 3, 0.1) for row in total])


@pytest.mark.parametrize("lengths", sorted(LENGTHS))
def test_two_residuals_and_three_activations(lengths: str) -> None:
    rows = Rows(LENGTHS[lengths], 128, 6, 5)
    sums, weights, bias, alphas = random_sums(128, 6, groups=True)
    one = dataclasses.replace(sums, groups=sums.groups[:1], firsts=sums.firsts[:1])
    memory, target = rows.empty_like(128, 4)
    SumLaunch(one, rows.area, target, [[Use(0, (1, 2), 0, (1, 2, 3))]]).launch()
    exact = conv_rows(rows, 0, weights[0], KERNELS[0][1])
    exact = [
        row + bias[0] + rows.memory[1, begin:stop].float() + rows.memory[2, begin:stop].float()
        for row, (begin, stop) in zip(exact, rows.spans, strict=True)
    ]
    rows.check(memory[0], exact)
    for copy in range(3):
        rows.check(memory[1 + copy], [snake(row, alphas[copy]) for row in exact])


@pytest.mark.parametrize("lengths", ["few", "some"])
def test_two_parts_of_16_bit_are_nearly_float32(lengths: str) -> None:
    """f0 becomes a phase, which accumulates the truncation of sums: with long sums on the tensor cores the audio is at 42 dB after 8 s."""
    rows = Rows(LENGTHS[lengths], 512, 2, 7)
    rows.memory[1] *= 2.0**-12
    generator = torch.Generator("cuda").manual_seed(8)
    conv = torch.nn.Conv1d(512, 512, 3, padding=1).cuda()
    with torch.no_grad():
        conv.weight.copy_(torch.randn(conv.weight.shape, generator=generator, device="cuda") / math.sqrt(3 * 512))
    memory, target = rows.empty_like(512, 2)
    SumLaunch(split_sum(conv, torch.float16), rows.area, target, [[Use(0, out=0, actives=(1,)), Use(1)]], "elu", 1 / F0_SCALE).launch()
    for begin, stop in rows.spans:
        given = rows.memory[:, begin:stop].double().sum(0).T[None]
        assert conv.bias is not None
        with torch.no_grad():
            exact = F.elu(F.conv1d(given, conv.weight.double(), conv.bias.double(), padding=1))[0].T
        assert snr_db(memory[:, begin:stop].double().sum(0), exact) > 130.0


MEL_HOPS = [(30, 12, 3), (50, 20, 40), (9, 300, 0), (50, 41, 7)]


@cache
def vocoder() -> CudaVocoderStage:
    stage = CudaVocoderStage(config(), SIZES)
    stage.record()
    return stage


def vocode(stage: VocoderStage, rows: Sequence[int]) -> list[FloatArray]:
    """Waveforms of some rows of MEL_HOPS, advanced together hop by hop."""
    states = {row: stage.open(row * 1_000_003 - 1) for row in rows}
    mels = {row: voiced_mel(sum(counts[row] for counts in MEL_HOPS), seed=row + 1).cuda() for row in rows}
    begins = dict.fromkeys(rows, 0)
    pieces: dict[int, list[FloatArray]] = {row: [] for row in rows}
    for number, counts in enumerate(MEL_HOPS):
        hops = []
        for row in rows:
            end = begins[row] + counts[row]
            hops.append(VocoderHop(states[row], mels[row][:, begins[row] : end], number == len(MEL_HOPS) - 1))
            begins[row] = end
        for row, piece in zip(rows, stage.hop(hops), strict=True):
            pieces[row].append(piece)
    for state in states.values():
        state.close()
    return [np.concatenate(pieces[row]) for row in rows]


def test_the_vocoder_is_close_to_float32() -> None:
    found, exact = vocode(vocoder(), (0, 1, 2)), vocode(VocoderStage(config(), SIZES), (0, 1, 2))
    for one, other in zip(found, exact, strict=True):
        assert snr_db(torch.from_numpy(one), torch.from_numpy(other)) > 40.0


def test_the_vocoder_gives_the_same_in_any_batch() -> None:
    together = vocode(vocoder(), (0, 1, 2))
    for row in range(3):
        assert snr_db(torch.from_numpy(vocode(vocoder(), (row,))[0]), torch.from_numpy(together[row])) > 60.0


@pytest.mark.parametrize("row", [0, 2])
def test_a_reused_slot_equals_a_new_one(row: int) -> None:
    """Bit for bit where every hop fits a bucket; row 1 has a longer one, on cuDNN, which may sum in another order."""
    first = vocode(vocoder(), (row,))[0]
    for _ in range(3):
        vocode(vocoder(), (1,))
        np.testing.assert_array_equal(vocode(vocoder(), (row,))[0], first)


def test_vocoder_slots_are_returned() -> None:
    stage = vocoder()
    states = [stage.open(seed) for seed in range(32)]
    with pytest.raises(BistreamError):
        stage.open(0)
    for _ in range(2):
        for state in states:
            state.close()
    again = [stage.open(seed) for seed in range(32)]
    assert len({state.slot for state in again}) == 32
    for state in again:
        state.close()
