"""Loads ``hift.pt`` strictly. In: a model directory and its sizes. Out: a ``HiFT`` network with weight norm folded in.

Accepted spellings of the same tensors: a ``generator.`` prefix (training checkpoints, which may hold a discriminator too), and
``weight_g``/``weight_v`` (PyTorch before the parametrization API) instead of ``parametrizations.weight.original0``/``original1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from bistream.checkpoints.config import VocoderConfig
from bistream.checkpoints.reader import check_state_dict, find_file, load_state_dict
from bistream.errors import CheckpointError
from bistream.mel2wav.hift import CONDNET_INDICES, Conv, HiFT, channels_last, source_strides, stage_channels

FILE_NAME = "hift.pt"
_PREFIX = "generator."
_DISCRIMINATOR = "discriminator."  # beside the generator where a vocoder was trained; speech needs none
_MAGNITUDE = "parametrizations.weight.original0"  # [first dimension of the kernel, 1, 1]
_DIRECTION = "parametrizations.weight.original1"  # the whole kernel
_OLD_NAMES = {"weight_g": _MAGNITUDE, "weight_v": _DIRECTION}

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(config: VocoderConfig) -> Shapes:
    """Every key of ``hift.pt`` (without ``generator.``) and its shape."""
    spectrum = config.istft_n_fft + 2  # real and imaginary parts, or magnitude and phase, of n_fft / 2 + 1 bins
    channels = stage_channels(config)
    shapes: Shapes = {}
    normed_conv(shapes, "conv_pre", (config.base_channels, config.in_channels, 7))
    for stage, (width, kernel) in enumerate(zip(channels, config.upsample_kernel_sizes, strict=True)):
        inputs = config.base_channels // 2**stage
        normed_conv(shapes, f"ups.{stage}", (inputs, width, kernel), bias=width)
    for stage, (width, stride) in enumerate(zip(channels, source_strides(config), strict=True)):
        _plain_conv(shapes, f"source_downs.{stage}", (width, spectrum, 1 if stride == 1 else 2 * stride))
        kernel, dilations = config.source_resblock_kernel_sizes[stage], config.source_resblock_dilation_sizes[stage]
        _residual_block(shapes, f"source_resblocks.{stage}", width, kernel, len(dilations))
    for stage, width in enumerate(channels):
        for index, (kernel, dilations) in enumerate(zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)):
            _residual_block(shapes, f"resblocks.{stage * len(config.resblock_kernel_sizes) + index}", width, kernel, len(dilations))
    normed_conv(shapes, "conv_post", (spectrum, channels[-1], 7))
    harmonics = config.nb_harmonics + 1
    shapes |= {"m_source.l_linear.weight": (1, harmonics), "m_source.l_linear.bias": (1,)}
    for position, index in enumerate(CONDNET_INDICES):
        inputs = config.in_channels if position == 0 else config.f0_channels
        normed_conv(shapes, f"f0_predictor.condnet.{index}", (config.f0_channels, inputs, 3))
    return shapes | {"f0_predictor.classifier.weight": (1, config.f0_channels), "f0_predictor.classifier.bias": (1,)}


def _plain_conv(shapes: Shapes, name: str, kernel: tuple[int, int, int]) -> None:
    shapes |= {f"{name}.weight": kernel, f"{name}.bias": (kernel[0],)}


def normed_conv(shapes: Shapes, name: str, kernel: tuple[int, int, int], bias: int | None = None) -> None:
    shapes |= {f"{name}.{_MAGNITUDE}": (kernel[0], 1, 1), f"{name}.{_DIRECTION}": kernel, f"{name}.bias": (bias or kernel[0],)}


def _residual_block(shapes: Shapes, name: str, channels: int, kernel: int, num_convs: int) -> None:
    for half in (1, 2):
        for index in range(num_convs):
            normed_conv(shapes, f"{name}.convs{half}.{index}", (channels, channels, kernel))
            shapes[f"{name}.activations{half}.{index}.alpha"] = (channels,)


def canonical_keys(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under the key names of ``expected_shapes``; unknown keys stay as they are (the check names them)."""
    renamed: dict[str, Tensor] = {}
    for key, value in state.items():
        if key.startswith(_DISCRIMINATOR):
            continue
        if not isinstance(value, Tensor):
            raise CheckpointError(f"{FILE_NAME}: key {key} is not a tensor; save the bare state dict of the vocoder.")
        name = key.removeprefix(_PREFIX)
        parent, _, leaf = name.rpartition(".")
        renamed[f"{parent}.{_OLD_NAMES[leaf]}" if leaf in _OLD_NAMES else name] = value
    return renamed


def fold_weight_norm(state: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Plain ``weight`` tensors in ``dtype``: g * v / |v|, the norm over all dimensions but the first (torch ``weight_norm``, dim 0)."""
    folded: dict[str, Tensor] = {}
    for key, value in state.items():
        if key.endswith(_MAGNITUDE):
            continue
        if key.endswith(_DIRECTION):
            parent = key.removesuffix(_DIRECTION)
            magnitude, direction = state[parent + _MAGNITUDE].to(dtype), value.to(dtype)
            norm = torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True)
            folded[f"{parent}weight"] = direction * (magnitude / norm)
        else:
            folded[key] = value.to(dtype)
    return folded


def load_hift(model_dir: str | Path, config: VocoderConfig, device: torch.device) -> HiFT:
    """Read ``hift.pt``. Raises ``CheckpointError`` that names file, key and both shapes when it does not fit ``config``."""
    state = canonical_keys(load_state_dict(find_file(model_dir, FILE_NAME)))
    check_state_dict(FILE_NAME, state, expected_shapes(config))
    network = HiFT(config)
    network.load_state_dict(fold_weight_norm(state))
    network.eval().requires_grad_(False).to(device)
    if device.type == "cpu":
        for module in network.modules():
            if isinstance(module, Conv):
                module.weight.data = channels_last(module.weight)
    return network
