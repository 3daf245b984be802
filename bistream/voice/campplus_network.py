"""The speaker encoder CAM++ in PyTorch: filter bank frames of several recordings in, one vector for each out.

The batched form of ``campplus.onnx`` for a GPU, with that file's weights (``campplus_weights``): recordings of any lengths share a call,
because what lies beyond a recording's end is zero wherever the network looks along time.

Wang et al. 2023, CAM++ (arXiv 2303.00332). A front end of convolutions over frequency and time halves the frequencies three times; one
convolution halves the frame rate; three densely connected blocks follow, each layer of which reads all channels before it and adds some,
weighted by a gate that has heard the mean of the recording and of the second it is in; mean and deviation over time are projected.
Sizes, strides and the order of operations were checked on an export of the same network: 617 weights, as in the released file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bistream.voice.features import KALDI_MEL_BINS

SEGMENT = 100  # positions whose mean the gate hears: 2 s of 10 ms frames, two for each position
FRAMES_PER_POSITION = 2
FRAME_UNIT = SEGMENT * FRAMES_PER_POSITION  # a batch is as long as a multiple of it
_HALVINGS = 8  # of the frequencies: by the two stages and the convolution after them
_LOCAL_KERNEL = 3
_FRONT = ("head.conv1", "head.layer1.0", "head.layer1.1", "head.layer2.0", "head.layer2.1", "head.conv2")


@dataclass(frozen=True)
class CampplusConfig:
    """Sizes; the defaults are those of the released file (6.8 million weights).

    blocks: layers of each, and how far apart the three positions are that a layer's convolution reads.
    """

    channels: int = 32  # of the front end
    width: int = 128  # before the first block
    growth: int = 32  # channels that a layer adds
    bottleneck: int = 128  # channels inside a layer
    context: int = 64  # of the gate
    blocks: tuple[tuple[int, int], ...] = ((12, 1), (24, 2), (16, 2))
    size: int = 192  # of the embedding

    def block_widths(self) -> list[tuple[int, int]]:
        """Channels at the beginning and the end of each block; half of the latter go on."""
        widths, width = [], self.width
        for layers, _ in self.blocks:
            widths.append((width, width + layers * self.growth))
            width = widths[-1][1] // 2
        return widths

    @classmethod
    def of(cls, state: Mapping[str, Tensor], dilations: Mapping[int, int]) -> CampplusConfig:
        """Sizes of the network with these weights. dilations: by number of the block, from 1. Raises ``KeyError`` for a missing weight."""
        counts: dict[int, int] = {}
        for key in state:
            if (match := re.match(r"xvector\.block(\d+)\.tdnnd(\d+)\.", key)) is not None:
                counts[int(match[1])] = max(counts.get(int(match[1]), 0), int(match[2]))
        first = "xvector.block1.tdnnd1"
        return cls(
            channels=len(state["head.conv1.weight"]),
            width=len(state["xvector.tdnn.linear.weight"]),
            growth=len(state[f"{first}.cam_layer.linear_local.weight"]),
            bottleneck=len(state[f"{first}.linear1.weight"]),
            context=len(state[f"{first}.cam_layer.linear1.weight"]),
            blocks=tuple((counts[number], dilations.get(number, 1)) for number in sorted(counts)),
            size=len(state["xvector.dense.linear.weight"]),
        )


def layer_shapes(config: CampplusConfig, width: int) -> dict[str, tuple[int, ...]]:
    """One layer of a block that reads ``width`` channels. ``norm``: a scale and a shift for each channel."""
    inner, context, growth = config.bottleneck, config.context, config.growth
    return {
        "norm.weight": (width,),
        "norm.bias": (width,),
        "linear1.weight": (inner, width, 1),
        "linear1.bias": (inner,),
        "cam_layer.linear_local.weight": (growth, inner, _LOCAL_KERNEL),
        "cam_layer.linear1.weight": (context, inner, 1),
        "cam_layer.linear1.bias": (context,),
        "cam_layer.linear2.weight": (growth, context, 1),
        "cam_layer.linear2.bias": (growth,),
    }


def expected_shapes(config: CampplusConfig) -> dict[str, tuple[int, ...]]:
    """Keys (3D-Speaker's, but for ``norm``) and shapes. A batch norm that follows a convolution is part of it, as in the file."""
    channels, shapes = config.channels, dict[str, tuple[int, ...]]()

    def convolution(name: str, *shape: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = shape
        if bias:
            shapes[f"{name}.bias"] = shape[:1]

    convolution("head.conv1", channels, 1, 3, 3)
    for block in _FRONT[1:-1]:
        convolution(f"{block}.conv1", channels, channels, 3, 3)
        convolution(f"{block}.conv2", channels, channels, 3, 3)
        if block.endswith(".0"):
            convolution(f"{block}.shortcut.0", channels, channels, 1, 1)
    convolution("head.conv2", channels, channels, 3, 3)
    convolution("xvector.tdnn.linear", config.width, channels * (KALDI_MEL_BINS // _HALVINGS), 5)
    widths = config.block_widths()
    for number, ((first, last), (layers, _)) in enumerate(zip(widths, config.blocks, strict=True), 1):
        for layer in range(layers):
            name = f"xvector.block{number}.tdnnd{layer + 1}"
            shapes |= {f"{name}.{key}": shape for key, shape in layer_shapes(config, first + layer * config.growth).items()}
        shapes |= {f"xvector.transit{number}.norm.{part}": (last,) for part in ("weight", "bias")}
        convolution(f"xvector.transit{number}.linear", last // 2, last, 1, bias=number == len(widths))
    convolution("xvector.dense.linear", config.size, 2 * (widths[-1][1] // 2), 1, bias=False)
    return shapes | {f"xvector.dense.norm.{part}": (config.size,) for part in ("weight", "bias")}


class CampplusNetwork:
    """Weights are held as matrices that multiply rows of positions: [in, out]."""

    def __init__(self, config: CampplusConfig, weights: Mapping[str, Tensor]) -> None:
        """weights: as ``_as_matrix`` makes them, all on one device."""
        self.config = config
        self._weights = weights

    @classmethod
    def from_state_dict(cls, state: dict[str, Tensor], dilations: Mapping[int, int]) -> CampplusNetwork:
        """state: complete, as of ``campplus_weights``; its tensors say the sizes. dilations: as in ``CampplusConfig.of``."""
        return cls(CampplusConfig.of(state, dilations), {key: _as_matrix(key, tensor) for key, tensor in state.items()})

    def to(self, device: torch.device) -> CampplusNetwork:
        return CampplusNetwork(self.config, {key: tensor.to(device) for key, tensor in self._weights.items()})

    @torch.inference_mode()
    def __call__(self, features: Tensor, lengths: Tensor) -> Tensor:
        """features float32 [B, T, 80], zero beyond each recording's length, T a multiple of ``FRAME_UNIT``; lengths int [B].

        Returns float32 [B, size]. Nothing in it waits for the device, so it can be recorded.
        """
        times = _Times(lengths, features.shape[1])
        x = self._front(features, times)
        for number, (layers, dilation) in enumerate(self.config.blocks, 1):
            x = self._block(number, x, layers, dilation, times)
        return self._embedding(x.relu_(), times)

    def _front(self, features: Tensor, times: _Times) -> Tensor:
        """[B, T, 80] -> [B, T / 2, width]."""
        x = times.kept(self._convolve("head.conv1", features.transpose(1, 2).unsqueeze(1)))
        for block in _FRONT[1:-1]:
            stride = 2 if block.endswith(".0") else 1
            inner = times.kept(self._convolve(f"{block}.conv1", x, stride))
            shortcut = self._convolve(f"{block}.shortcut.0", x, stride, padding=0) if stride == 2 else x
            x = times.kept(self._convolve(f"{block}.conv2", inner).add_(shortcut))
        x = times.kept(self._convolve("head.conv2", x, 2))
        kernel, bias = self._weights["xvector.tdnn.linear.weight"], self._weights["xvector.tdnn.linear.bias"]
        narrow = functional.conv1d(x.flatten(1, 2), kernel, bias, stride=FRAMES_PER_POSITION, padding=kernel.shape[2] // 2)
        return narrow.relu_().transpose(1, 2)

    def _convolve(self, name: str, x: Tensor, stride: int = 1, padding: int = 1) -> Tensor:
        """stride: over frequency."""
        return functional.conv2d(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"], (stride, 1), padding)

    def _block(self, number: int, x: Tensor, layers: int, dilation: int, times: _Times) -> Tensor:
        """[B, P, first] -> [B, P, half of what the block ends with]."""
        width, growth = x.shape[2], self.config.growth
        channels = x.new_empty(*x.shape[:2], width + layers * growth)  # each layer adds its own, and nothing is copied
        channels[..., :width] = x
        # Zeros beside what the convolution reads; the layers write between them.
        margin = x.new_zeros(len(x), x.shape[1] + 2 * dilation, self.config.bottleneck)
        for layer in range(layers):
            name = f"xvector.block{number}.tdnnd{layer + 1}"
            self._layer(name, channels[..., :width], channels[..., width : width + growth], margin, dilation, times)
            width += growth
        name = f"xvector.transit{number}"
        normed = self._norm(f"{name}.norm", channels)
        narrow, bias = normed @ self._weights[f"{name}.linear.weight"], self._weights.get(f"{name}.linear.bias")
        return narrow if bias is None else narrow.add_(bias)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return torch.addcmul(self._weights[f"{name}.bias"], x, self._weights[f"{name}.weight"]).relu_()

    def _layer(self, name: str, read: Tensor, written: Tensor, margin: Tensor, dilation: int, times: _Times) -> None:
        """read [B, P, some channels]; written [B, P, growth]; margin [B, P + 2 dilation, bottleneck], zero at both ends."""
        batch, positions, _ = read.shape
        matrix = self._weights[f"{name}.linear1.weight"]
        inner = torch.addmm(self._weights[f"{name}.linear1.bias"], self._norm(f"{name}.norm", read).flatten(0, 1), matrix)
        between = margin[:, dilation : dilation + positions]
        torch.clamp(inner.view(batch, positions, -1), times.zero, times.positions, out=between)
        gate = self._gate(f"{name}.cam_layer", torch.bmm(times.means, between))
        taps = margin.as_strided(  # what a position reads: [B, P, 3, bottleneck]
            (batch, positions, _LOCAL_KERNEL, margin.shape[2]),
            (margin.stride(0), margin.stride(1), dilation * margin.stride(1), 1),
        )
        local = taps.reshape(batch * positions, -1) @ self._weights[f"{name}.cam_layer.linear_local.weight"]
        rows = (batch, -1, SEGMENT, local.shape[1])
        torch.mul(local.view(rows), gate[:, :, None], out=written.view(rows))

    def _gate(self, name: str, means: Tensor) -> Tensor:
        """[B, segments, bottleneck] -> [B, segments, growth]."""
        rows = means.flatten(0, 1)
        context = torch.addmm(self._weights[f"{name}.linear1.bias"], rows, self._weights[f"{name}.linear1.weight"]).relu_()
        gate = torch.addmm(self._weights[f"{name}.linear2.bias"], context, self._weights[f"{name}.linear2.weight"]).sigmoid_()
        return gate.view(*means.shape[:2], -1)

    def _embedding(self, x: Tensor, times: _Times) -> Tensor:
        """[B, P, channels] -> [B, size]."""
        inside, count = times.inside[:, :, None], times.count[:, None]
        mean = (x * inside).sum(1) / count
        variance = ((x - mean[:, None]).square() * inside).sum(1) / (count - 1)
        pooled = torch.cat([mean, variance.sqrt()], dim=1)
        scale, shift = self._weights["xvector.dense.norm.weight"], self._weights["xvector.dense.norm.bias"]
        return torch.addcmul(shift, pooled @ self._weights["xvector.dense.linear.weight"], scale)


class _Times:
    """What follows from the lengths of a batch.

    ``torch.clamp`` between zero and a limit is ReLU inside a recording, where the limit is infinite, and zero beyond it, in one call.
    """

    def __init__(self, lengths: Tensor, frames: int) -> None:
        """lengths int [B], at most ``frames``."""
        device, positions = lengths.device, frames // FRAMES_PER_POSITION
        self.zero = torch.zeros((), device=device)
        infinity = torch.full((), math.inf, device=device)
        frame = torch.arange(frames, device=device) < lengths[:, None]
        self.frames = torch.where(frame, infinity, self.zero)[:, None, None, :]
        counts = (lengths + 1) // FRAMES_PER_POSITION
        inside = torch.arange(positions, device=device) < counts[:, None]
        self.positions = torch.where(inside, infinity, self.zero)[:, :, None]
        self.inside = inside.float()
        self.count = counts.float()
        self.means = self._means(positions)

    def kept(self, x: Tensor) -> Tensor:
        """ReLU of [B, channels, frequencies, T], in its place."""
        return torch.clamp(x, self.zero, self.frames, out=x)

    def _means(self, positions: int) -> Tensor:
        """float32 [B, segments, P]: row s of a recording sums its mean and the mean of its segment s, which may end early."""
        segments = self.inside.view(len(self.inside), -1, SEGMENT)
        own = torch.eye(segments.shape[1], device=segments.device)[None, :, :, None]
        of_segment = own * (segments / segments.sum(2, keepdim=True).clamp(min=1))[:, None]
        return of_segment.flatten(2, 3) + (self.inside / self.count[:, None])[:, None]


def _as_matrix(key: str, tensor: Tensor) -> Tensor:
    """Kernels over positions as [positions read times in, out]; all else as it is."""
    if tensor.dim() != 3 or key.startswith("xvector.tdnn."):
        return tensor.contiguous()
    return tensor.permute(2, 1, 0).flatten(0, 1).contiguous()
