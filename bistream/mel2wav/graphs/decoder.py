"""``HiFT.decode`` between the two Fourier transforms, in the dtype and memory layout in which a GPU's convolutions are fastest.

The network is the one of ``hift.py``; here convolutions add no bias, the activations and sums between two of them are fused into one
function, and a residual stream lacks its biases until its next sum, which adds all missing ones as one vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.mel2wav.graphs.functions import Functions
from bistream.mel2wav.hift import LAST_LEAKY_SLOPE, HiFT, ResBlock, Snake

_CHANNEL_ROUND = 8  # of spectra: tensor cores take channels in groups of eight


@dataclass(frozen=True)
class Layout:
    """Activations are [B, positions, channels] (channels last), or [B, channels, positions]."""

    channels_last: bool

    @property
    def positions_dim(self) -> int:
        return 1 if self.channels_last else 2

    @property
    def channels_dim(self) -> int:
        return 2 if self.channels_last else 1

    def enter(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """x: [B, positions, channels]."""
        return (x if self.channels_last else x.transpose(1, 2)).to(dtype).contiguous()

    def leave(self, x: Tensor) -> Tensor:
        """Between the layout and [B, positions, channels]; a view."""
        return x if self.channels_last else x.transpose(1, 2)

    def vector(self, values: Tensor) -> Tensor:
        """One float32 number per channel, in a shape that broadcasts over activations."""
        values = values.detach().float().clone()
        return values if self.channels_last else values[:, None]

    def convolve(self, x: Tensor, conv: Conv) -> Tensor:
        """As a convolution of images of height 1: PyTorch has a channels-last layout for images only."""
        image = (x.transpose(1, 2) if self.channels_last else x).unsqueeze(2)
        if conv.transposed:
            image = F.conv_transpose2d(image, conv.weight, None, (1, conv.stride), (0, conv.padding))
        else:
            image = F.conv2d(image, conv.weight, None, (1, conv.stride), (0, conv.padding), (1, conv.dilation))
        line = image.squeeze(2)
        return line.transpose(1, 2) if self.channels_last else line


@dataclass(frozen=True)
class Conv:
    """weight: 4-dimensional, height 1. bias: float32 in the layout's shape; it is not added by ``Layout.convolve``."""

    weight: Tensor
    bias: Tensor
    stride: int
    padding: int
    dilation: int = 1
    transposed: bool = False


@dataclass(frozen=True)
class Layer:
    """One layer of a residual block: activation, convolution, activation, convolution, sum.

    missing: the bias that the sum adds, that of the last convolution plus those that the summands lack.
    """

    alpha1: Tensor
    conv1: Conv
    alpha2: Tensor
    conv2: Conv
    missing: Tensor


@dataclass(frozen=True)
class Stage:
    """source_block: of the source; blocks: the parallel ones after it. join_missing, end_missing: biases of the sums that end them."""

    up: Conv
    source_down: Conv
    source_block: list[Layer]
    blocks: list[list[Layer]]
    join_missing: Tensor
    end_missing: Tensor


def _pack(module: nn.Module, dtype: torch.dtype, layout: Layout, inputs: int = 0, outputs: int = 0) -> Conv:
    """inputs, outputs: channels to pad to with zeros (0: no padding)."""
    assert isinstance(module, nn.Conv1d | nn.ConvTranspose1d) and module.bias is not None and isinstance(module.padding[0], int)
    weight, bias = module.weight.detach(), module.bias.detach()
    if inputs or outputs:
        grow = (max(0, outputs - weight.shape[0]), max(0, inputs - weight.shape[1]))
        weight, bias = F.pad(weight, (0, 0, 0, grow[1], 0, grow[0])), F.pad(bias, (0, grow[0]))
    memory = torch.channels_last if layout.channels_last else torch.contiguous_format
    image = weight.to(dtype).unsqueeze(2).clone(memory_format=memory)
    return Conv(image, layout.vector(bias), module.stride[0], module.padding[0], module.dilation[0], isinstance(module, nn.ConvTranspose1d))


def _layers(block: nn.Module, dtype: torch.dtype, layout: Layout, missing: Tensor | None = None) -> list[Layer]:
    """missing: the bias that the block's input lacks."""
    assert isinstance(block, ResBlock)

    def alpha(snake: nn.Module) -> Tensor:
        assert isinstance(snake, Snake)
        return layout.vector(snake.alpha)

    layers = []
    for snake1, conv1, snake2, conv2 in zip(block.activations1, block.convs1, block.activations2, block.convs2, strict=True):
        second = _pack(conv2, dtype, layout)
        lacks = second.bias if missing is None else second.bias + missing
        layers.append(Layer(alpha(snake1), _pack(conv1, dtype, layout), alpha(snake2), second, lacks))
        missing = None
    return layers


def _stage(
    up: nn.Module, down: nn.Module, source: nn.Module, blocks: Sequence[nn.Module], dtype: torch.dtype, layout: Layout, width: int
) -> Stage:
    """width: channels of the source's spectrum."""
    packed_up, packed_down = _pack(up, dtype, layout), _pack(down, dtype, layout, inputs=width)
    source_block = _layers(source, dtype, layout, packed_down.bias)
    packed = [_layers(block, dtype, layout) for block in blocks]
    ends = torch.stack([layers[-1].missing for layers in packed]).sum(0)
    return Stage(packed_up, packed_down, source_block, packed, source_block[-1].missing + packed_up.bias, ends)


class Decoder:
    """Holds a copy of the weights in ``dtype``; the network is unchanged."""

    def __init__(self, hift: HiFT, dtype: torch.dtype, layout: Layout, functions: Functions) -> None:
        self.dtype, self.layout, self._functions = dtype, layout, functions
        config = hift.config
        self.spectrum_width = -(-(config.istft_n_fft + 2) // _CHANNEL_ROUND) * _CHANNEL_ROUND
        kernels = len(config.resblock_kernel_sizes)
        self._pre = _pack(hift.conv_pre, dtype, layout)
        self._stages = [
            _stage(up, down, source, list(hift.resblocks[index * kernels : (index + 1) * kernels]), dtype, layout, self.spectrum_width)
            for index, (up, down, source) in enumerate(zip(hift.ups, hift.source_downs, hift.source_resblocks, strict=True))
        ]
        self._post = _pack(hift.conv_post, dtype, layout, outputs=self.spectrum_width)
        self.post_bias = self._post.bias.flatten()
        device = self._pre.weight.device
        slopes = [config.lrelu_slope] * len(self._stages) + [LAST_LEAKY_SLOPE]
        self._slopes = [torch.tensor(slope, device=device) for slope in slopes]
        self._one, self._share = torch.tensor(1.0, device=device), torch.tensor(1.0 / kernels, device=device)

    def __call__(self, mel: Tensor, spectrum: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """mel [B, T, 80], spectrum [B, frames, spectrum_width], masks [B, positions, 1] at the rate of the mel and of each stage.

        Returns the output of ``conv_post`` without its bias, [B, frames, spectrum_width].
        """
        masks = [self.layout.leave(mask) for mask in masks]
        functions, convolve = self._functions, self.layout.convolve
        waves = self.layout.enter(spectrum, self.dtype)
        x = convolve(self.layout.enter(mel, self.dtype), self._pre)
        x = functions.add_and_leak([x], self._pre.bias, self._one, self._slopes[0], masks[0])
        for index, stage in enumerate(self._stages):
            x = convolve(x, stage.up)
            if index == len(self._stages) - 1:
                second = x.narrow(self.layout.positions_dim, 1, 1)
                x = torch.cat([second, x], dim=self.layout.positions_dim)  # one reflected position: there is one STFT frame more than hops
            x = self._stage(stage, x, convolve(waves, stage.source_down), self._slopes[index + 1], masks[index + 1])
        return self.layout.leave(convolve(x, self._post))

    def _stage(self, stage: Stage, x: Tensor, source: Tensor, slope: Tensor, mask: Tensor) -> Tensor:
        """x: upsampled, source: at the same rate, both without their biases -> activation for the next layer."""
        functions = self._functions
        active = functions.snake(source, stage.source_down.bias, stage.source_block[0].alpha1, mask)
        parts = self._residual(stage.source_block, source, active, mask)
        x, *actives = functions.add_and_snake([x, *parts], stage.join_missing, [layers[0].alpha1 for layers in stage.blocks], mask)
        ends = [part for layers, active in zip(stage.blocks, actives, strict=True) for part in self._residual(layers, x, active, mask)]
        leaky: Tensor = functions.add_and_leak(ends, stage.end_missing, self._share, slope, mask)
        return leaky

    def _residual(self, block: list[Layer], x: Tensor, active: Tensor, mask: Tensor) -> list[Tensor]:
        """A residual block up to its last sum: two summands, which lack ``missing`` of the last layer."""
        functions, convolve = self._functions, self.layout.convolve
        parts = [x]
        for index, layer in enumerate(block):
            if index > 0:
                x, active = functions.add_and_snake(parts, block[index - 1].missing, [layer.alpha1], mask)
            inner = functions.snake(convolve(active, layer.conv1), layer.conv1.bias, layer.alpha2, mask)
            parts = [x, convolve(inner, layer.conv2)]
        return parts
