"""Loads ``BiCodec/model.safetensors`` strictly: every key of the release and no other, of the shapes that the yaml says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bistream.bicodec.config import CodecConfig, read_config
from bistream.bicodec.network import BiCodec
from bistream.bicodec.shapes import COMPUTED, FILE_NAME, expected_shapes, unused, with_sizes_of
from bistream.bicodec.weight_norm import fold, old_names
from bistream.checkpoints.reader import check_state_dict, find_file
from bistream.errors import CheckpointError


def load_codec(model_dir: str | Path, device: torch.device) -> BiCodec:
    """Raises ``CheckpointError`` with one sentence that names the file, and the key where one is missing, unknown or of another shape."""
    config = read_config(model_dir)
    path = find_file(model_dir, FILE_NAME)
    try:
        state = load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{FILE_NAME} could not be read ({type(error).__name__}); the file is damaged, download it again.") from error
    return build_codec(config, state).to(device)


def build_codec(config: CodecConfig, state: Mapping[str, Tensor]) -> BiCodec:
    """state: as in the file. Raises ``CheckpointError`` as above."""
    named = {key: tensor for key, tensor in old_names(state).items() if key not in COMPUTED}
    config = with_sizes_of(config, {key: tuple(tensor.shape) for key, tensor in named.items()})
    check_state_dict(FILE_NAME, named, expected_shapes(config))
    with torch.device("meta"):
        network = BiCodec(config)
    network.load_state_dict(served_tensors(named), assign=True)
    return network.eval().requires_grad_(False)


def served_tensors(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What speech needs, under the keys of ``BiCodec``: kernels folded, one factor per channel of a snake in one axis."""
    served = fold({key: tensor for key, tensor in named.items() if not unused(key)})
    return {key: tensor.flatten() if key.endswith(".alpha") else tensor for key, tensor in served.items()}
