"""Weights of the vocoder in the form its kernels read: 16 bit [outputs, taps, channels], the f0 predictor in float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bistream.mel2wav.hift import HiFT, ResBlock

_SPECTRUM_WIDTH = 32  # channels of the source's spectrum (18 are real), and of the last convolution


@dataclass(frozen=True)
class Conv:
    """weight: [outputs, taps, channels]. Transposed ones (``up`` > 0): outputs = up * features, ``crop`` positions are cut off in front."""

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
class Block:
    """A residual block: pairs of convolutions, and the alphas of the activations before each of them."""

    convs1: list[Conv]
    convs2: list[Conv]
    alphas1: list[Tensor]
    alphas2: list[Tensor]


@dataclass(frozen=True)
class StageWeights:
    up: Conv
    source_down: Conv
    source_block: Block
    blocks: list[Block]
    first_alphas: Tensor  # [blocks, channels], before the first convolution of each block


@dataclass(frozen=True)
class VocoderWeights:
    f0: list[Conv]
    pre: Conv
    stages: list[StageWeights]
    post: Conv
    forward_basis: Tensor  # [n_fft, 32]
    inverse_basis: Tensor  # [2, 16, n_fft]


def pack_weights(hift: HiFT, dtype: torch.dtype) -> VocoderWeights:
    """``hift`` stays as it is; dtype: of everything but the f0 predictor and the Fourier bases."""
    config = hift.config
    kernels = len(config.resblock_kernel_sizes)
    stages = []
    for index, (up, down, source_block) in enumerate(zip(hift.ups, hift.source_downs, hift.source_resblocks, strict=True)):
        members = hift.resblocks[index * kernels : (index + 1) * kernels]
        blocks = [_block(block, dtype) for block in members if isinstance(block, ResBlock)]
        assert isinstance(up, nn.ConvTranspose1d) and isinstance(down, nn.Conv1d) and isinstance(source_block, ResBlock)
        alphas = torch.stack([block.alphas1[0] for block in blocks])
        source_down = _conv(down, dtype, pad_channels=_SPECTRUM_WIDTH)
        stages.append(StageWeights(_transposed(up, dtype), source_down, _block(source_block, dtype), blocks, alphas))
    f0 = [_conv(conv, torch.float32) for conv in hift.f0_predictor.condnet.values() if isinstance(conv, nn.Conv1d)]
    n_fft = config.istft_n_fft
    bins = n_fft // 2 + 1
    forward = torch.zeros(n_fft, _SPECTRUM_WIDTH, device=hift.fourier.forward_basis.device)
    forward[:, : 2 * bins] = hift.fourier.forward_basis[:, 0].T
    inverse = torch.zeros(2, 16, n_fft, device=forward.device)
    inverse[:, :bins] = hift.fourier.inverse_basis[:, 0].view(2, bins, n_fft)
    pre, post = _conv(hift.conv_pre, dtype), _conv(hift.conv_post, dtype, pad_outputs=_SPECTRUM_WIDTH)
    return VocoderWeights(f0, pre, stages, post, forward, inverse)


def _block(block: ResBlock, dtype: torch.dtype) -> Block:
    return Block(
        [_conv(conv, dtype) for conv in block.convs1 if isinstance(conv, nn.Conv1d)],
        [_conv(conv, dtype) for conv in block.convs2 if isinstance(conv, nn.Conv1d)],
        [_alpha(snake) for snake in block.activations1],
        [_alpha(snake) for snake in block.activations2],
    )


def _alpha(snake: nn.Module) -> Tensor:
    alpha = snake.alpha
    assert isinstance(alpha, Tensor)
    return alpha.float().contiguous()


def _conv(conv: nn.Conv1d, dtype: torch.dtype, pad_channels: int = 0, pad_outputs: int = 0) -> Conv:
    """[out, in, taps] -> [outputs, taps, channels], zeros up to the padded sizes."""
    weight = conv.weight.transpose(1, 2)
    outputs, taps, channels = weight.shape
    packed = torch.zeros(max(outputs, pad_outputs), taps, max(channels, pad_channels), dtype=dtype, device=weight.device)
    packed[:outputs, :, :channels] = weight
    bias = torch.zeros(len(packed), device=weight.device)
    if conv.bias is not None:
        bias[:outputs] = conv.bias
    padding = conv.padding[0]
    assert isinstance(padding, int)
    return Conv(packed, bias, len(packed), conv.dilation[0], conv.stride[0], padding)


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
