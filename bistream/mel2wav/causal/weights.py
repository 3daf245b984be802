"""``hift.pt`` of CosyVoice3: as CosyVoice2's but for a few kernels. Out: a ``CausalHiFT`` with weight norm folded in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from bistream.checkpoints.config import CausalVocoderConfig
from bistream.checkpoints.reader import check_state_dict, find_file, load_state_dict
from bistream.mel2wav import weights as symmetric
from bistream.mel2wav.causal.network import CausalHiFT
from bistream.mel2wav.hift import CONDNET_INDICES, stage_channels
from bistream.mel2wav.weights import FILE_NAME, Shapes, canonical_keys, fold_weight_norm, normed_conv


def expected_shapes(config: CausalVocoderConfig) -> Shapes:
    """Every key of ``hift.pt`` (without ``generator.``) and its shape."""
    shapes = symmetric.expected_shapes(config)
    normed_conv(shapes, "conv_pre", (config.base_channels, config.in_channels, config.conv_pre_look_right + 1))
    for stage, (width, kernel) in enumerate(zip(stage_channels(config), config.upsample_kernel_sizes, strict=True)):
        normed_conv(shapes, f"ups.{stage}", (width, config.base_channels // 2**stage, kernel))  # not transposed
    normed_conv(shapes, f"f0_predictor.condnet.{CONDNET_INDICES[0]}", (config.f0_channels, config.in_channels, config.f0_look_right + 1))
    return shapes


def load_hift(model_dir: str | Path, config: CausalVocoderConfig, device: torch.device) -> CausalHiFT:
    """Read ``hift.pt``. Raises ``CheckpointError`` that names file, key and both shapes when it does not fit ``config``."""
    return build_hift(load_state_dict(find_file(model_dir, FILE_NAME)), config, device)


def build_hift(state: Mapping[str, Tensor], config: CausalVocoderConfig, device: torch.device) -> CausalHiFT:
    """The network with the tensors of ``state``, in the spellings that ``mel2wav.weights`` accepts."""
    state = canonical_keys(state)
    check_state_dict(FILE_NAME, state, expected_shapes(config))
    network = CausalHiFT(config)
    network.load_state_dict(fold_weight_norm(state, torch.float64))  # the f0 predictor is float64; the rest is rounded once
    return network.eval().requires_grad_(False).to(device)
