"""Weights of the speech tokenizer from its ONNX file: every layer is known by what feeds it and what it feeds.

In the released file most matrices are anonymous and transposed (``onnx::MatMul_2536``), and another export numbers them differently.
So the place of a layer in the graph decides. A graph with any other structure is refused.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from bistream.errors import CheckpointError
from bistream.voice.onnx_layers import GRAPH_INPUT, Layer, Layers, LayerType, as_float32, read_layers
from bistream.voice.s3_network import HEAD_SIZE, S3Config, expected_shapes


class _MisfitError(Exception):
    """What is different in the graph."""


def state_dict_from_onnx(path: Path) -> dict[str, Tensor]:
    """The network's weights, float32. Raises ``CheckpointError`` for a file that cannot be read or has another structure."""
    found = read_layers(path)
    try:
        state: dict[str, Tensor] = {}
        for name, layer in _named(found).items():
            state[f"{name}.weight"] = torch.from_numpy(as_float32(layer.weight))
            if layer.bias is not None:
                state[f"{name}.bias"] = torch.from_numpy(as_float32(layer.bias))
        _check(state)
    except _MisfitError as misfit:
        raise CheckpointError(
            f"{path.name} is not built like the released speech tokenizer ({misfit}); set speech_tokenizer to onnx, which runs any graph."
        ) from None
    return state


class _Places:
    """Finds layers by kind and by what feeds them, and remembers which have been found."""

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        self.layers = layers
        self.names: dict[int, str] = {}

    def fed_by(self, kind: LayerType, feeds: frozenset[int]) -> list[int]:
        return [number for number, layer in enumerate(self.layers) if layer.kind is kind and layer.feeds == feeds]

    def take(self, name: str, kind: LayerType, feeds: frozenset[int]) -> int:
        numbers = self.fed_by(kind, feeds)
        if len(numbers) != 1:
            raise _MisfitError(f"it has {len(numbers)} {kind.value}s in the place of {name}")
        return self.call(name, numbers[0])

    def call(self, name: str, number: int) -> int:
        self.names[number] = name
        return number


def _named(found: Layers) -> dict[str, Layer]:
    """By the names of the state dict. stream: the layers whose sum is the residual stream."""
    places = _Places(found.layers)
    first = places.take("encoder.conv1", LayerType.CONVOLUTION, frozenset({GRAPH_INPUT}))
    stream = frozenset({places.take("encoder.conv2", LayerType.CONVOLUTION, frozenset({first}))})
    block = 0
    while places.fed_by(LayerType.NORM, stream):
        stream = _name_block(places, f"encoder.blocks.{block}", stream)
        block += 1
    last = places.take("quantizer._codebook.project_down", LayerType.LINEAR, stream)
    if found.output != {last} or len(places.names) != len(found.layers):
        raise _MisfitError(f"only {len(places.names)} of its {len(found.layers)} layers with weights have their place")
    return {name: found.layers[number] for number, name in places.names.items()}


def _name_block(places: _Places, block: str, stream: frozenset[int]) -> frozenset[int]:
    """Attention with its memory, then the two layers between. Returns the stream after the block."""
    norm = places.take(f"{block}.attn_ln", LayerType.NORM, stream)
    projections = places.fed_by(LayerType.LINEAR, frozenset({norm}))
    values = [number for number in projections if places.fed_by(LayerType.CONVOLUTION, frozenset({number}))]
    keys = [number for number in projections if places.layers[number].bias is None and number not in values]
    if (len(projections), len(values), len(keys)) != (3, 1, 1):
        raise _MisfitError(f"query, key and value of {block} cannot be told apart")
    value, key = places.call(f"{block}.attn.value", values[0]), places.call(f"{block}.attn.key", keys[0])
    (query,) = set(projections) - {value, key}
    places.call(f"{block}.attn.query", query)
    memory = places.take(f"{block}.attn.fsmn_block", LayerType.CONVOLUTION, frozenset({value}))
    out = places.take(f"{block}.attn.out", LayerType.LINEAR, frozenset(projections))
    stream |= {value, memory, out}
    norm = places.take(f"{block}.mlp_ln", LayerType.NORM, stream)
    inner = places.take(f"{block}.mlp.0", LayerType.LINEAR, frozenset({norm}))
    return stream | {places.take(f"{block}.mlp.2", LayerType.LINEAR, frozenset({inner}))}


def _check(state: dict[str, Tensor]) -> None:
    """Shapes against each other."""
    config = S3Config.of(state)
    if config.width % HEAD_SIZE:
        raise _MisfitError(f"its width {config.width} is no multiple of {HEAD_SIZE}")
    expected = expected_shapes(config)
    for key in sorted(expected.keys() ^ state.keys()):
        raise _MisfitError(f"{key} is {'missing' if key in expected else 'too much'}")
    for key, shape in expected.items():
        if tuple(state[key].shape) != shape:
            raise _MisfitError(f"{key} has shape {list(state[key].shape)}, not {list(shape)}")
