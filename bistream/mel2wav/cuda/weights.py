"""Weights of the vocoder in the form its kernels read: 16 bit; those of the f0 predictor are split into two 16-bit parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bistream.mel2wav.cuda.weights_sums import ConvolutionSums, Part, pack_sums
from bistream.mel2wav.hift import HiFT, ResBlock

_SPECTRUM_WIDTH = 32  # channels of the source's spectrum (18 are in use), and of the result's, 16 for real and 16 for imaginary parts
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
    """source_pairs, pairs: the two convolutions of each layer of the source's residual block and of all others, longest kernel first."""

    up: Conv
    source_down: Conv
    source_alpha: Tensor  # [channels], before the first convolution of the source's block
    source_pairs: list[tuple[ConvolutionSums, ConvolutionSums]]
    pairs: list[tuple[ConvolutionSums, ConvolutionSums]]


@dataclass(frozen=True)
class VocoderWeights:
    f0: list[ConvolutionSums]
    pre: ConvolutionSums
    stages: list[StageWeights]
    post: Conv
    forward_basis: Tensor  # [n_fft, 32]
    inverse_basis: Tensor  # [2, 16, n_fft]


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
        source_down = _conv(down, dtype, pad_channels=_SPECTRUM_WIDTH)
        stages.append(
            StageWeights(
                up=_transposed(up, dtype),
                source_down=source_down,
                source_alpha=_alpha(source_block.activations1[0]),
                source_pairs=_pairs([source_block], dtype, firsts, is_sum=False),
                pairs=_pairs(blocks, dtype, firsts, is_sum=True),
            )
        )
    f0 = [split_sum(conv, dtype) for conv in hift.f0_predictor.condnet.values() if isinstance(conv, nn.Conv1d)]
    n_fft = config.istft_n_fft
    bins = n_fft // 2 + 1
    forward = torch.zeros(n_fft, _SPECTRUM_WIDTH, device=hift.fourier.forward_basis.device)
    forward[:, : 2 * bins] = hift.fourier.forward_basis[:, 0].T
    inverse = torch.zeros(2, 16, n_fft, device=forward.device)
    inverse[:, :bins] = hift.fourier.inverse_basis[:, 0].view(2, bins, n_fft)
    pre = _sum([[hift.conv_pre]], dtype, torch.zeros(1, hift.conv_pre.out_channels, device=forward.device))
    return VocoderWeights(f0, pre, stages, _spectrum_conv(hift.conv_post, dtype, bins), forward, inverse)


def _pairs(blocks: Sequence[ResBlock], dtype: torch.dtype, after: Tensor, is_sum: bool) -> list[tuple[ConvolutionSums, ConvolutionSums]]:
    """Layers of blocks that run in parallel. after: alphas of the activations that follow, [any, channels]; is_sum: they end in one sum."""
    pairs = []
    layers = len(blocks[0].convs1)
    for layer in range(layers):
        is_end = layer == layers - 1
        between = torch.stack([_alpha(block.activations2[layer]) for block in blocks])
        following = after if is_end else torch.stack([_alpha(block.activations1[layer + 1]) for block in blocks])
        first = _sum([[block.convs1[layer]] for block in blocks], dtype, between)
        seconds = [block.convs2[layer] for block in blocks]
        second = _sum([seconds] if is_end and is_sum else [[conv] for conv in seconds], dtype, following)
        pairs.append((first, second))
    return pairs


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


def _spectrum_conv(conv: nn.Conv1d, dtype: torch.dtype, bins: int) -> Conv:
    """Log magnitudes in the first half of the outputs, phases in the second one."""
    plain, half = _conv(conv, dtype), _SPECTRUM_WIDTH // 2
    weight = torch.zeros(_SPECTRUM_WIDTH, *plain.weight.shape[1:], dtype=dtype, device=plain.weight.device)
    bias = torch.zeros(_SPECTRUM_WIDTH, device=plain.weight.device)
    for part in range(2):
        weight[part * half : part * half + bins] = plain.weight[part * bins : (part + 1) * bins]
        bias[part * half : part * half + bins] = plain.bias[part * bins : (part + 1) * bins]
    return Conv(weight, bias, _SPECTRUM_WIDTH, plain.dilation, plain.stride, plain.pad)


def _conv(conv: nn.Conv1d, dtype: torch.dtype, pad_channels: int = 0) -> Conv:
    """[out, in, taps] -> [outputs, taps, channels], channels padded with zeros."""
    weight = conv.weight.transpose(1, 2)
    outputs, taps, channels = weight.shape
    packed = torch.zeros(outputs, taps, max(channels, pad_channels), dtype=dtype, device=weight.device)
    packed[:outputs, :, :channels] = weight
    bias = torch.zeros(len(packed), device=weight.device)
    if conv.bias is not None:
        bias[:outputs] = conv.bias
    return Conv(packed, bias, len(packed), conv.dilation[0], conv.stride[0], _padding(conv))


def _transposed(conv: nn.ConvTranspose1d, dtype: torch.dtype) -> Conv:
    """[in, out, kernel] -> [rate * out, taps, in]: output (phase, feature) reads position t - tap with weight phase + tap * rate."""
    channels, features, kernel = conv.weight.shape
    rate = conv.stride[0]
    taps = -(-kernel // rate)
    packed = torch.zeros(rate, features, taps, channels, dtype=dtype, device=conv.weight.device)
    for tap in range(taps):
        for phase in range(rate):
            if phase + tap * rate < kernel:
                packed[phase, :, tap] = conv.weight[:, :, phase + tap * rate].T
    assert conv.bias is not None
    padding = conv.padding[0]
    assert isinstance(padding, int)
    return Conv(packed.view(rate * features, taps, channels), conv.bias.float().contiguous(), features, -1, 1, 0, rate, padding)
