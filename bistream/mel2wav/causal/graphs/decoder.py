"""The decoder between the two Fourier transforms, in the dtype and memory layout, channels last, in which a GPU convolves fastest.

The network is that of ``causal/network.py``; here convolutions add no bias, the activations and sums between two of them are fused into one
function, and a residual stream lacks its biases until its next sum, which adds all missing ones as one vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bistream.mel2wav.causal.graphs.functions import Functions
from bistream.mel2wav.causal.layers import CausalConv, CausalResBlock, LayerMemory, Upsampling
from bistream.mel2wav.causal.network import CausalHiFT
from bistream.mel2wav.hift import LAST_LEAKY_SLOPE, Snake

_WIDE = 256  # channels, from which on a dilated convolution is computed as a product
_CHANNEL_ROUND = 8  # of spectra: tensor cores take channels in groups of eight
POSITIONS_DIM = 1  # of activations, whose channels are last


@dataclass(frozen=True)
class Conv:
    """weight: 4-dimensional, height 1. bias: float32; it is not added by ``convolve``.

    history: positions to the left that the convolution sees, after its input's positions were repeated ``repeats`` times. stage: from
    0 on; -1: before the first.
    """

    weight: Tensor
    bias: Tensor
    stride: int
    dilation: int = 1
    history: int = 0
    repeats: int = 1
    stage: int = -1


def convolve(x: Tensor, conv: Conv) -> Tensor:
    """[B, positions, channels]. As a convolution of images of height 1: PyTorch has a channels-last layout for images only."""
    if _is_product(conv):
        return _as_product(x, conv)
    image = x.transpose(1, 2).unsqueeze(2)
    return F.conv2d(image, conv.weight, None, (1, conv.stride), (0, 0), (1, conv.dilation)).squeeze(2).transpose(1, 2)


def _is_product(conv: Conv) -> bool:
    """Whether a convolution is computed by ``_as_product``, which knows no strides."""
    return conv.dilation > 1 and min(conv.weight.shape[:2]) >= _WIDE and conv.stride == 1


def _as_product(x: Tensor, conv: Conv) -> Tensor:
    """A dilated convolution as a product of matrices over its windows. x: [B, positions, channels].

    For 256 channels, 7 positions and dilation 5 cuDNN 9 chooses a direct convolution, which takes 53 ms for 64 rows of 448 positions; all
    others of its size take 0.1 (docs/log/gpu.md).
    """
    x = x.contiguous()
    (rows, positions, channels), kernel = x.shape, conv.weight.shape[3]
    count = positions - (kernel - 1) * conv.dilation
    windows = x.as_strided((rows, count, kernel, channels), (positions * channels, channels, conv.dilation * channels, 1))
    return F.linear(windows.reshape(rows, count, kernel * channels), conv.weight.permute(0, 2, 3, 1).flatten(1))


@dataclass(frozen=True)
class Edges:
    """What stands before the rows of one call: what the previous call saw. starts: bool [B], rows at the start of their signal."""

    hift: CausalHiFT
    memory: LayerMemory
    starts: Tensor

    def convolve(self, x: Tensor, conv: Conv) -> Tensor:
        """Without the bias."""
        if conv.repeats > 1:
            x = x.repeat_interleave(conv.repeats, dim=POSITIONS_DIM)
        if conv.history:
            x = self.memory.extend(x, conv.history, self.hift.rates[conv.stage])
        return convolve(x, conv)

    def front(self, x: Tensor) -> Tensor:
        """The position before the first one of the last stage: there is one STFT frame more than hops."""
        before = self.memory.extend(x, 1, self.hift.rates[-1])[:, :1]
        return torch.where(self.starts[:, None, None], x[:, 1:2], before)

    def source(self, waves: Tensor, stage: int) -> Tensor:
        """The positions of the source's spectrum that a stage reads."""
        stride = self.hift.source_downs[stage].stride
        assert isinstance(stride, tuple)
        return waves[:, self.hift.source_frames_before - (stride[0] - 1) :]


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


def _pack(module: nn.Module, dtype: torch.dtype, stage: int, inputs: int = 0, outputs: int = 0) -> Conv:
    """inputs, outputs: channels to pad to with zeros (0: no padding)."""
    assert isinstance(module, nn.Conv1d) and module.bias is not None
    weight, bias = module.weight.detach(), module.bias.detach()
    if inputs or outputs:
        grow = (max(0, outputs - weight.shape[0]), max(0, inputs - weight.shape[1]))
        weight, bias = F.pad(weight, (0, 0, 0, grow[1], 0, grow[0])), F.pad(bias, (0, grow[0]))
    image = weight.to(dtype).unsqueeze(2).clone(memory_format=torch.channels_last)
    return Conv(
        weight=image,
        bias=_vector(bias),
        stride=module.stride[0],
        dilation=module.dilation[0],
        history=module.history if isinstance(module, CausalConv) else 0,
        repeats=module.factor if isinstance(module, Upsampling) else 1,
        stage=stage,
    )


def _vector(values: Tensor) -> Tensor:
    """One float32 number per channel."""
    return values.detach().float().clone()


def _layers(block: nn.Module, dtype: torch.dtype, stage: int, missing: Tensor | None = None) -> list[Layer]:
    """missing: the bias that the block's input lacks."""
    assert isinstance(block, CausalResBlock)

    def alpha(snake: nn.Module) -> Tensor:
        assert isinstance(snake, Snake)
        return _vector(snake.alpha)

    layers = []
    for snake1, conv1, snake2, conv2 in zip(block.activations1, block.convs1, block.activations2, block.convs2, strict=True):
        second = _pack(conv2, dtype, stage)
        lacks = second.bias if missing is None else second.bias + missing
        layers.append(Layer(alpha(snake1), _pack(conv1, dtype, stage), alpha(snake2), second, lacks))
        missing = None
    return layers


def _stage(hift: CausalHiFT, stage: int, dtype: torch.dtype, width: int) -> Stage:
    """width: channels of the source's spectrum."""
    kernels = len(hift.config.resblock_kernel_sizes)
    blocks = list(hift.resblocks)[stage * kernels : (stage + 1) * kernels]
    packed_up = _pack(hift.ups[stage], dtype, stage)
    packed_down = _pack(hift.source_downs[stage], dtype, stage, inputs=width)
    source_block = _layers(hift.source_resblocks[stage], dtype, stage, packed_down.bias)
    packed = [_layers(block, dtype, stage) for block in blocks]
    ends = torch.stack([layers[-1].missing for layers in packed]).sum(0)
    return Stage(packed_up, packed_down, source_block, packed, source_block[-1].missing + packed_up.bias, ends)


class Decoder:
    """Holds a copy of the weights in ``dtype``; the network is unchanged."""

    def __init__(self, hift: CausalHiFT, dtype: torch.dtype, functions: Functions) -> None:
        self.dtype, self._functions = dtype, functions
        config = hift.config
        self.spectrum_width = -(-(config.istft_n_fft + 2) // _CHANNEL_ROUND) * _CHANNEL_ROUND
        kernels = len(config.resblock_kernel_sizes)
        self._pre = _pack(hift.conv_pre, dtype, -1)
        self._stages = [_stage(hift, stage, dtype, self.spectrum_width) for stage in range(len(hift.ups))]
        self._post = _pack(hift.conv_post, dtype, len(hift.ups) - 1, outputs=self.spectrum_width)
        self.post_bias = self._post.bias
        device = self._pre.weight.device
        slopes = [config.lrelu_slope] * len(self._stages) + [LAST_LEAKY_SLOPE]
        self._slopes = [torch.tensor(slope, device=device) for slope in slopes]
        self._one, self._share = torch.tensor(1.0, device=device), torch.tensor(1.0 / kernels, device=device)

    def __call__(self, mel: Tensor, spectrum: Tensor, masks: Sequence[Tensor], edges: Edges) -> Tensor:
        """mel [B, T, 80], spectrum [B, frames, spectrum_width], masks [B, positions, 1] at the rate of the mel and of each stage.

        Returns the output of ``conv_post`` without its bias, [B, frames, spectrum_width].
        """
        functions = self._functions
        waves = spectrum.to(self.dtype).contiguous()
        x = edges.convolve(mel.to(self.dtype).contiguous(), self._pre)
        x = functions.add_and_leak([x], self._pre.bias, self._one, self._slopes[0], masks[0])
        for index, stage in enumerate(self._stages):
            x = edges.convolve(x, stage.up)
            if index == len(self._stages) - 1:
                x = torch.cat([edges.front(x), x], dim=POSITIONS_DIM)
            source = edges.convolve(edges.source(waves, index), stage.source_down)
            x = self._stage(stage, x, source, self._slopes[index + 1], masks[index + 1], edges)
        return edges.convolve(x, self._post)

    def _stage(self, stage: Stage, x: Tensor, source: Tensor, slope: Tensor, mask: Tensor, edges: Edges) -> Tensor:
        """x: upsampled, source: at the same rate, both without their biases -> activation for the next layer."""
        functions = self._functions
        active = functions.snake(source, stage.source_down.bias, stage.source_block[0].alpha1, mask)
        parts = self._residual(stage.source_block, source, active, mask, edges)
        x, *actives = functions.add_and_snake([x, *parts], stage.join_missing, [layers[0].alpha1 for layers in stage.blocks], mask)
        residuals = [self._residual(layers, x, active, mask, edges) for layers, active in zip(stage.blocks, actives, strict=True)]
        ends = [part for parts in residuals for part in parts]
        leaky: Tensor = functions.add_and_leak(ends, stage.end_missing, self._share, slope, mask)
        return leaky

    def _residual(self, block: list[Layer], x: Tensor, active: Tensor, mask: Tensor, edges: Edges) -> list[Tensor]:
        """A residual block up to its last sum: two summands, which lack ``missing`` of the last layer."""
        functions, convolve = self._functions, edges.convolve
        parts = [x]
        for index, layer in enumerate(block):
            if index > 0:
                x, active = functions.add_and_snake(parts, block[index - 1].missing, [layer.alpha1], mask)
            inner = functions.snake(convolve(active, layer.conv1), layer.conv1.bias, layer.alpha2, mask)
            parts = [x, convolve(inner, layer.conv2)]
        return parts
