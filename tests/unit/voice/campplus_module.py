"""CAM++ as it is trained and exported: modules with batch norms, one recording at a time, no masks. What ``campplus_network`` must equal.

Written from the description of 3D-Speaker's network; names are its. Exported at full size it has the 617 weights of the released file.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from bistream.voice.campplus_network import SEGMENT, CampplusConfig
from bistream.voice.features import KALDI_MEL_BINS


class _Normed(nn.Sequential):
    def __init__(self, channels: int, has_weights: bool = True, has_relu: bool = True) -> None:
        super().__init__()
        self.add_module("batchnorm", nn.BatchNorm1d(channels, affine=has_weights))
        if has_relu:
            self.add_module("relu", nn.ReLU())


class _Residual(nn.Module):
    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, (stride, 1), 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, channels, 1, (stride, 1), bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(inner + self.shortcut(x))


class _Head(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.layer1 = nn.Sequential(_Residual(channels, 2), _Residual(channels, 1))
        self.layer2 = nn.Sequential(_Residual(channels, 2), _Residual(channels, 1))
        self.conv2 = nn.Conv2d(channels, channels, 3, (2, 1), 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x[:, None])))
        x = functional.relu(self.bn2(self.conv2(self.layer2(self.layer1(x)))))
        shape = x.shape
        return x.reshape(shape[0], shape[1] * shape[2], shape[3])


class _Cam(nn.Module):
    def __init__(self, config: CampplusConfig, dilation: int) -> None:
        super().__init__()
        self.linear_local = nn.Conv1d(config.bottleneck, config.growth, 3, padding=dilation, dilation=dilation, bias=False)
        self.linear1 = nn.Conv1d(config.bottleneck, config.context, 1)
        self.linear2 = nn.Conv1d(config.context, config.growth, 1)

    def forward(self, x: Tensor) -> Tensor:
        context = x.mean(-1, keepdim=True) + self.segments(x)
        gate: Tensor = self.linear2(functional.relu(self.linear1(context))).sigmoid()
        output: Tensor = self.linear_local(x) * gate
        return output

    def segments(self, x: Tensor) -> Tensor:
        pooled = functional.avg_pool1d(x, kernel_size=SEGMENT, stride=SEGMENT, ceil_mode=True)
        shape = pooled.shape
        repeated = pooled.unsqueeze(-1).expand(shape[0], shape[1], shape[2], SEGMENT).reshape(shape[0], shape[1], -1)
        return repeated[..., : x.shape[-1]]


class _Layer(nn.Module):
    def __init__(self, config: CampplusConfig, width: int, dilation: int) -> None:
        super().__init__()
        self.nonlinear1 = _Normed(width)
        self.linear1 = nn.Conv1d(width, config.bottleneck, 1, bias=False)
        self.nonlinear2 = _Normed(config.bottleneck)
        self.cam_layer = _Cam(config, dilation)

    def forward(self, x: Tensor) -> Tensor:
        added = self.cam_layer(self.nonlinear2(self.linear1(self.nonlinear1(x))))
        return torch.cat([x, added], dim=1)


class CampplusModule(nn.Module):
    """Random weights and statistics."""

    def __init__(self, config: CampplusConfig, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.head = _Head(config.channels)
        self.tdnn = nn.Conv1d(config.channels * KALDI_MEL_BINS // 8, config.width, 5, 2, 2, bias=False)
        parts: list[nn.Module] = [_Normed(config.width)]
        for (first, last), (layers, dilation) in zip(config.block_widths(), config.blocks, strict=True):
            parts += [_Layer(config, first + layer * config.growth, dilation) for layer in range(layers)]
            parts += [_Normed(last), nn.Conv1d(last, last // 2, 1, bias=False)]
        self.blocks = nn.Sequential(*parts, _Normed(config.block_widths()[-1][1] // 2))
        self.dense = nn.Conv1d(2 * (config.block_widths()[-1][1] // 2), config.size, 1, bias=False)
        self.out = _Normed(config.size, has_weights=False, has_relu=False)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                _give_statistics(module)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, 80] -> [B, size]."""
        x = self.blocks(self.tdnn(self.head(x.permute(0, 2, 1))))
        pooled = torch.cat([x.mean(-1), x.std(-1, unbiased=True)], dim=-1)
        output: Tensor = self.out(self.dense(pooled[..., None]).squeeze(-1))
        return output

    def export(self, path: Path, opset: int) -> None:
        axes = {"input": {0: "B", 1: "T"}, "output": {0: "B"}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # this exporter is deprecated; the released file was made with it
            torch.onnx.export(
                self, (torch.randn(1, 345, KALDI_MEL_BINS),), str(path), opset_version=opset, dynamo=False,
                input_names=["input"], output_names=["output"], dynamic_axes=axes,
            )  # fmt: skip


def _give_statistics(norm: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
    assert norm.running_mean is not None and norm.running_var is not None
    norm.running_mean.normal_(0.0, 0.1)
    norm.running_var.uniform_(0.5, 1.5)
    if norm.affine:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, 0.0, 0.1)
