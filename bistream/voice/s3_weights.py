"""Weights of the speech tokenizer from its ONNX file: every layer is known by what feeds it and what it feeds.

In the released file most matrices are anonymous and transposed (``onnx::MatMul_2536``), and another export numbers them differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from bistream.voice.onnx_layers import GRAPH_INPUT, LayerType, MisfitError, Places, read_weights
from bistream.voice.s3_network import HEAD_SIZE, S3Config, expected_shapes


def state_dict_from_onnx(path: Path) -> dict[str, Tensor]:
    """The network's weights, float32. Raises as ``read_weights``."""
    return read_weights(path, "speech tokenizer", _name_layers, _expected)


def _name_layers(places: Places) -> int:
    """By the names of the state dict. stream: the layers whose sum is the residual stream."""
    first = places.take("encoder.conv1", LayerType.CONVOLUTION, frozenset({GRAPH_INPUT}))
    stream = frozenset({places.take("encoder.conv2", LayerType.CONVOLUTION, frozenset({first}))})
    block = 0
    while places.fed_by(LayerType.NORM, stream):
        stream = _name_block(places, f"encoder.blocks.{block}", stream)
        block += 1
    return places.take("quantizer._codebook.project_down", LayerType.LINEAR, stream)


def _name_block(places: Places, block: str, stream: frozenset[int]) -> frozenset[int]:
    """Attention with its memory, then the two layers between. Returns the stream after the block."""
    norm = places.take(f"{block}.attn_ln", LayerType.NORM, stream)
    projections = places.fed_by(LayerType.LINEAR, frozenset({norm}))
    values = [number for number in projections if places.fed_by(LayerType.CONVOLUTION, frozenset({number}))]
    keys = [number for number in projections if places.layers[number].bias is None and number not in values]
    if (len(projections), len(values), len(keys)) != (3, 1, 1):
        raise MisfitError(f"query, key and value of {block} cannot be told apart")
    (value,), (key,) = values, keys
    (query,) = set(projections) - {value, key}
    places.names |= {value: f"{block}.attn.value", key: f"{block}.attn.key", query: f"{block}.attn.query"}
    memory = places.take(f"{block}.attn.fsmn_block", LayerType.CONVOLUTION, frozenset({value}))
    out = places.take(f"{block}.attn.out", LayerType.LINEAR, frozenset(projections))
    stream |= {value, memory, out}
    norm = places.take(f"{block}.mlp_ln", LayerType.NORM, stream)
    inner = places.take(f"{block}.mlp.0", LayerType.LINEAR, frozenset({norm}))
    return stream | {places.take(f"{block}.mlp.2", LayerType.LINEAR, frozenset({inner}))}


def _expected(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    config = S3Config.of(state)
    if config.width % HEAD_SIZE:
        raise MisfitError(f"its width {config.width} is no multiple of {HEAD_SIZE}")
    return expected_shapes(config)
