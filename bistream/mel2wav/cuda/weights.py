"""Weights of the vocoder in the form its kernels read: 16 bit; those of the f0 predictor are split into two 16-bit parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.mel2wav.cuda.weights_sums import ConvolutionSums, Part, pack_sums
from bistream.mel2wav.hift import HiFT, ResBlock
from bistream.mel2wav.sizes import padded_width, spectrum_width

F0_SCALE = 64.0  # of the f0 predictor's weights: keeps the 16-bit remainders out of the subnormal range


@dataclass(frozen=True)
class Conv:
    """weight: [outputs, taps, channels]. Transposed ones (``up`` > 0): outputs = up * features, ``crop`` positions are cut in front."""

    weight: Tensor
    bias: Tensor
    features: int
    dilation: int = 1
    stride: int = 1
    pad: int = 0
    up: int = 0
    crop: int = 0

    @property
    def taps(self) -> int:
        return self.weight.shape[1]

    @property
    def channels(self) -> int:
        return self.weight.shape[2]


@dataclass(frozen=True)
class StageWeights:
    """source_pairs: the two convolutions of each layer of the source's residual block. layers: those of all others, which run in parallel,
    longest kernel first, and end together; with the numbers of the blocks that have begun.
    """

    up: Conv
    source_down: Conv
    source_alpha: Tensor  # [channels], before the first convolution of the source's block
    source_pairs: list[tuple[ConvolutionSums, ConvolutionSums]]
    layers: list[tuple[ConvolutionSums, ConvolutionSums, list[int]]]


@dataclass(frozen=True)
class VocoderWeights:
    f0: list[ConvolutionSums]
    pre: ConvolutionSums
    stages: list[StageWeights]
    post: Conv
    classifier: Tensor  # of f0, [channels]
    forward_basis: Tensor  # [n_fft, channels of a spectrum]
    inverse_basis: Tensor  # [2, half of these channels, n_fft]


def pack_weights(hift: HiFT, dtype: torch.dtype) -> VocoderWeights:
    """``hift`` is not changed. dtype: of everything but the Fourier bases."""
    config = hift.config
    kernels = len(config.resblock_kernel_sizes)
    stages = []
    for index, (up, down, source_block) in enumerate(zip(hift.ups, hift.source_downs, hift.source_resblocks, strict=True)):
        members = hift.resblocks[index * kernels : (index + 1) * kernels]
        assert isinstance(up, nn.ConvTranspose1d) and isinstance(down, nn.Conv1d) and isinstance(source_block, ResBlock)
        blocks = [block for block in members if isinstance(block, ResBlock)]
        blocks.sort(key=lambda block: -_checked(block.convs1[0]).kernel_size[0])
        firsts = torch.stack([_alpha(block.activations1[0]) for block in blocks])
        width = padded_width(down.out_channels)
        source_layers = _layers([source_block], dtype, firsts, is_sum=False)
        stages.append(
            StageWeights(
                up=_transposed(up, dtype),
                source_down=_conv(down, dtype, width, spectrum_width(config)),
                source_alpha=_padded(_alpha(source_block.activations1[0]), width),
                source_pairs=[(first, second) for first, second, _ in source_layers],
                layers=_layers(blocks, dtype, firsts, is_sum=True),
            )
        )
    f0 = [split_sum(conv, dtype) for conv in hift.f0_predictor.condnet.values() if isinstance(conv, nn.Conv1d)]
    n_fft = config.istft_n_fft
    bins = n_fft // 2 + 1
    width = spectrum_width(config)
    forward = torch.zeros(n_fft, width, device=hift.fourier.forward_basis.device)
    forward[:, : 2 * bins] = hift.fourier.forward_basis[:, 0].T
    inverse = torch.zeros(2, width // 2, n_fft, device=forward.device)
    inverse[:, :bins] = hift.fourier.inverse_basis[:, 0].view(2, bins, n_fft)
    pre = _sum([[hift.conv_pre]], dtype, torch.zeros(1, hift.conv_pre.out_channels, device=forward.device))
    classifier = _padded(hift.f0_predictor.classifier.weight[0], padded_width(config.f0_channels))
    return VocoderWeights(f0, pre, stages, _spectrum_conv(hift.conv_post, dtype, bins, width), classifier, forward, inverse)


def _layers(
    blocks: Sequence[ResBlock], dtype: torch.dtype, after: Tensor, is_sum: bool
) -> list[tuple[ConvolutionSums, ConvolutionSums, list[int]]]:
    """Of blocks that run in parallel. after: alphas of the activations that follow, [any, channels]; is_sum: they end in one sum."""
    found = []
    depth = max(len(block.convs1) for block in blocks)
    for layer in range(depth):
        is_end = layer == depth - 1
        begun = [number for number, block in enumerate(blocks) if layer >= depth - len(block.convs1)]
        places = [(blocks[number], layer - depth + len(blocks[number].convs1)) for number in begun]
        between = torch.stack([_alpha(block.activations2[place]) for block, place in places])
        following = after if is_end else torch.stack([_alpha(block.activations1[place + 1]) for block, place in places])
        first = _sum([[block.convs1[place]] for block, place in places], dtype, between)
        seconds = [block.convs2[place] for block, place in places]
        second = _sum([seconds] if is_end and is_sum else [[conv] for conv in seconds], dtype, following)
        found.append((first, second, begun))
    return found


def _sum(groups: Sequence[Sequence[nn.Module]], dtype: torch.dtype, alphas: Tensor) -> ConvolutionSums:
    convs = [[_checked(module) for module in group] for group in groups]
    parts = [[(conv.weight.transpose(1, 2), _part(conv, use)) for use, conv in enumerate(group)] for group in convs]
    bias = torch.stack([torch.stack([_bias(conv) for conv in group]).sum(0) for group in convs])
    return pack_sums(parts, bias, alphas, dtype)


def split_sum(module: nn.Module, dtype: torch.dtype) -> ConvolutionSums:
    """A convolution times F0_SCALE whose input is split into 16-bit values and remainders: nearly as exact as float32.

    The input's first part is multiplied by both parts of the weights, its second part by the first one only.
    """
    conv = _checked(module)
    weight = conv.weight.transpose(1, 2) * F0_SCALE
    high = weight.to(dtype).float()
    first, second = _part(conv, 0), _part(conv, 1)
    bias = (_bias(conv) * F0_SCALE)[None]
    return pack_sums([[(weight - high, first), (high, second), (high, first)]], bias, torch.zeros_like(bias), dtype, exact=True)


def _part(conv: nn.Conv1d, use: int) -> Part:
    return Part(conv.kernel_size[0], conv.dilation[0], _padding(conv), use)


def _checked(module: nn.Module) -> nn.Conv1d:
    assert isinstance(module, nn.Conv1d)
    return module


def _bias(conv: nn.Conv1d) -> Tensor:
    assert conv.bias is not None
    return conv.bias.float()


def _padding(conv: nn.Conv1d) -> int:
    padding = conv.padding[0]
    assert isinstance(padding, int)
    return padding


def _alpha(snake: nn.Module) -> Tensor:
    alpha = snake.alpha
    assert isinstance(alpha, Tensor)
    return alpha.float().contiguous()


def _padded(values: Tensor, *sizes: int) -> Tensor:
    """Zeros behind the last dimensions, up to these sizes."""
    missing = [size - found for size, found in zip(sizes, values.shape[-len(sizes) :], strict=True)]
    return F.pad(values, [number for size in reversed(missing) for number in (0, size)])


def _spectrum_conv(conv: nn.Conv1d, dtype: torch.dtype, bins: int, width: int) -> Conv:
    """Log magnitudes in the first half of the outputs, phases in the second one."""
    plain = _conv(conv, dtype, conv.out_channels, padded_width(conv.in_channels))
    halves = (plain.weight.reshape(2, bins, *plain.weight.shape[1:]), plain.bias.reshape(2, bins))
    weight, bias = _padded(halves[0], width // 2, *plain.weight.shape[1:]).flatten(0, 1), _padded(halves[1], width // 2).flatten()
    return Conv(weight.contiguous(), bias, width, plain.dilation, plain.stride, plain.pad)


def _conv(conv: nn.Conv1d, dtype: torch.dtype, outputs: int, channels: int) -> Conv:
    """[out, in, taps] -> [outputs, taps, channels], both padded with zeros."""
    weight = _padded(conv.weight.transpose(1, 2), outputs, conv.kernel_size[0], channels).to(dtype).contiguous()
    return Conv(weight, _padded(_bias(conv), outputs), outputs, conv.dilation[0], conv.stride[0], _padding(conv))


def _transposed(conv: nn.ConvTranspose1d, dtype: torch.dtype) -> Conv:
    """[in, out, kernel] -> [rate * out, taps, in]: output (phase, feature) reads position t - tap with weight phase + tap * rate."""
    channels, features, kernel = conv.weight.shape
    rate, width = conv.stride[0], padded_width(features)
    taps = -(-kernel // rate)
    packed = torch.zeros(rate, width, taps, padded_width(channels), dtype=dtype, device=conv.weight.device)
    for tap in range(taps):
        for phase in range(rate):
            if phase + tap * rate < kernel:
                packed[phase, :features, tap, :channels] = conv.weight[:, :, phase + tap * rate].T
    assert conv.bias is not None
    padding = conv.padding[0]
    assert isinstance(padding, int)
    return Conv(packed.flatten(0, 1), _padded(conv.bias.float(), width), width, -1, 1, 0, rate, padding)
