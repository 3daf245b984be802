"""Reads the folder ``wav2vec2-large-xlsr-53``: sizes from ``config.json``, tensors from ``pytorch_model.bin``, which is a pickle.

The pickle is read as data (``weights_only``). The file holds a model for pre-training: what only that needs, and the layers behind
the last one that the codec hears, are left in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bistream.bicodec.wav2vec2 import NUM_LAYERS, Wav2Vec2, Wav2Vec2Config
from bistream.bicodec.weight_norm import DIRECTION, GAIN, fold, old_names
from bistream.checkpoints.reader import check_state_dict, find_file, load_state_dict
from bistream.errors import CheckpointError

FOLDER = "wav2vec2-large-xlsr-53"
CONFIG_NAME, FILE_NAME = f"{FOLDER}/config.json", f"{FOLDER}/pytorch_model.bin"
PREFIX = "wav2vec2."
_FIXED = {  # values that the network is written for
    "do_stable_layer_norm": True,
    "feat_extract_norm": "layer",
    "feat_extract_activation": "gelu",
    "hidden_act": "gelu",
}
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")
_UNUSED = ("masked_spec_embed", "encoder.layer_norm.weight", "encoder.layer_norm.bias")

Shape = tuple[int, ...]


def load_wav2vec2(model_dir: str | Path, device: torch.device) -> Wav2Vec2:
    """Raises ``CheckpointError`` with one sentence that names the file, and the key where one does not fit."""
    config = read_config(model_dir)
    return build_wav2vec2(config, load_state_dict(find_file(model_dir, FILE_NAME))).to(device)


def build_wav2vec2(config: Wav2Vec2Config, state: Mapping[str, Tensor]) -> Wav2Vec2:
    """state: as in the file. Raises ``CheckpointError`` as above."""
    named = {key.removeprefix(PREFIX): tensor for key, tensor in old_names(state).items() if key.startswith(PREFIX)}
    served = {key: tensor for key, tensor in named.items() if not _unused(key)}
    check_state_dict(FILE_NAME, served, expected_shapes(config))
    with torch.device("meta"):
        network = Wav2Vec2(config)
    network.load_state_dict(fold(served), assign=True)
    return network.eval().requires_grad_(False)


def _unused(key: str) -> bool:
    layer = _LAYER.match(key)
    return key in _UNUSED or (layer is not None and int(layer[1]) >= NUM_LAYERS)


def read_config(model_dir: str | Path) -> Wav2Vec2Config:
    """Raises ``CheckpointError``."""
    path = find_file(model_dir, CONFIG_NAME)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        config = _config(values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise CheckpointError(f"{CONFIG_NAME} could not be interpreted ({reason}); restore it from the released model.") from error
    return config


def _config(values: dict[str, Any]) -> Wav2Vec2Config:
    for key, value in _FIXED.items():
        if values[key] != value:
            raise ValueError(f"{key} is {values[key]!r}, and only {value!r} can be computed")
    config = Wav2Vec2Config(
        width=int(values["hidden_size"]),
        heads=int(values["num_attention_heads"]),
        intermediate=int(values["intermediate_size"]),
        layers=int(values["num_hidden_layers"]),
        conv_widths=tuple(map(int, values["conv_dim"])),
        conv_kernels=tuple(map(int, values["conv_kernel"])),
        conv_strides=tuple(map(int, values["conv_stride"])),
        conv_bias=bool(values["conv_bias"]),
        position_kernel=int(values["num_conv_pos_embeddings"]),
        position_groups=int(values["num_conv_pos_embedding_groups"]),
        norm_eps=float(values["layer_norm_eps"]),
    )
    if config.layers < NUM_LAYERS:
        raise ValueError(f"num_hidden_layers is {config.layers}, and {NUM_LAYERS} are needed")
    if config.width % config.heads or config.width % config.position_groups:
        raise ValueError(f"hidden_size {config.width} is no multiple of the heads, or of the groups of the position convolution")
    if not len(config.conv_widths) == len(config.conv_kernels) == len(config.conv_strides) > 0:
        raise ValueError("conv_dim, conv_kernel and conv_stride are of different lengths")
    return config


def expected_shapes(config: Wav2Vec2Config, layers: int = NUM_LAYERS) -> dict[str, Shape]:
    """Keys of the file without ``wav2vec2.`` that the network reads, with so many layers."""
    return dict(_shapes(config, layers))


def _layer(name: str, weight: Shape, has_bias: bool = True) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", weight
    if has_bias:
        yield f"{name}.bias", weight[:1]


def _shapes(config: Wav2Vec2Config, layers: int) -> Iterator[tuple[str, Shape]]:
    width, inner, inputs = config.width, config.intermediate, 1
    for index, (outputs, kernel) in enumerate(zip(config.conv_widths, config.conv_kernels, strict=True)):
        yield from _layer(f"feature_extractor.conv_layers.{index}.conv", (outputs, inputs, kernel), config.conv_bias)
        yield from _layer(f"feature_extractor.conv_layers.{index}.layer_norm", (outputs,))
        inputs = outputs
    yield from _layer("feature_projection.layer_norm", (inputs,))
    yield from _layer("feature_projection.projection", (width, inputs))
    position = "encoder.pos_conv_embed.conv"
    yield f"{position}.bias", (width,)
    yield f"{position}.{GAIN}", (1, 1, config.position_kernel)
    yield f"{position}.{DIRECTION}", (width, width // config.position_groups, config.position_kernel)
    for index in range(layers):
        layer = f"encoder.layers.{index}"
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            yield from _layer(f"{layer}.attention.{name}", (width, width))
        yield from _layer(f"{layer}.layer_norm", (width,))
        yield from _layer(f"{layer}.feed_forward.intermediate_dense", (inner, width))
        yield from _layer(f"{layer}.feed_forward.output_dense", (width, inner))
        yield from _layer(f"{layer}.final_layer_norm", (width,))
