"""Weights of the speaker encoder from its ONNX file: every layer is known by what feeds it and what it feeds (``onnx_layers``).

In the released file the kernels of the front end have made-up names, and another export may fold other batch norms into convolutions.
So the place of a layer in the graph decides. A graph with any other structure is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from bistream.errors import CheckpointError
from bistream.voice.campplus_network import CampplusConfig, expected_shapes
from bistream.voice.onnx_layers import GRAPH_INPUT, Layer, Layers, LayerType, as_float32, read_layers


class _MisfitError(Exception):
    """What is different in the graph."""


def read_campplus(path: Path) -> tuple[dict[str, Tensor], dict[int, int]]:
    """The network's weights, float32, and the dilation of each block. Raises ``CheckpointError`` for a file that cannot be read or has
    another structure."""
    found = read_layers(path)
    try:
        places = _named(found)
        state: dict[str, Tensor] = {}
        for number, name in places.names.items():
            layer = found.layers[number]
            state[f"{name}.weight"] = torch.from_numpy(as_float32(layer.weight))
            if layer.bias is not None:
                state[f"{name}.bias"] = torch.from_numpy(as_float32(layer.bias))
        _check(state, places.dilations)
    except _MisfitError as misfit:
        raise CheckpointError(
            f"{path.name} is not built like the released speaker encoder ({misfit}); set speaker_encoder to onnx, which runs any graph."
        ) from None
    return state, places.dilations


@dataclass
class _Places:
    """Finds layers by kind and by what feeds them, and remembers which have been found."""

    layers: tuple[Layer, ...]
    names: dict[int, str] = field(default_factory=dict)
    dilations: dict[int, int] = field(default_factory=dict)

    def fed_by(self, kind: LayerType, feeds: frozenset[int]) -> list[int]:
        return [number for number, layer in enumerate(self.layers) if layer.kind is kind and layer.feeds == feeds]

    def take(self, name: str, kind: LayerType, feeds: frozenset[int], kernel: int | None = None) -> int:
        """kernel: last axis of the weight; None: any."""
        numbers = [number for number in self.fed_by(kind, feeds) if kernel is None or self.layers[number].weight.shape[-1] == kernel]
        if len(numbers) != 1:
            raise _MisfitError(f"it has {len(numbers)} layers in the place of {name}")
        self.names[numbers[0]] = name
        return numbers[0]


def _named(found: Layers) -> _Places:
    """stream: the layers whose values, added or joined, are what the next part reads."""
    places = _Places(found.layers)
    stream = _name_front(places)
    block = 1
    while True:
        stream = _name_block(places, block, stream)
        norm = places.take(f"xvector.transit{block}.norm", LayerType.SCALE, stream)
        stream = frozenset({places.take(f"xvector.transit{block}.linear", LayerType.CONVOLUTION, frozenset({norm}))})
        if not places.fed_by(LayerType.SCALE, stream):
            break
        block += 1
    last = places.take("xvector.dense.linear", LayerType.CONVOLUTION, stream)
    last = places.take("xvector.dense.norm", LayerType.SCALE, frozenset({last}))
    if found.output != {last} or len(places.names) != len(found.layers):
        raise _MisfitError(f"only {len(places.names)} of its {len(found.layers)} layers with weights have their place")
    return places


def _name_front(places: _Places) -> frozenset[int]:
    """Two stages of two residual blocks, of which the first has a convolution in place of its shortcut."""
    stream = frozenset({places.take("head.conv1", LayerType.CONVOLUTION, frozenset({GRAPH_INPUT}))})
    for stage in ("head.layer1", "head.layer2"):
        for block in (f"{stage}.0", f"{stage}.1"):
            inner = places.take(f"{block}.conv1", LayerType.CONVOLUTION, stream, kernel=3)
            outer = places.take(f"{block}.conv2", LayerType.CONVOLUTION, frozenset({inner}))
            if block.endswith(".0"):
                stream = frozenset({places.take(f"{block}.shortcut.0", LayerType.CONVOLUTION, stream, kernel=1)})
            stream |= {outer}
    last = places.take("head.conv2", LayerType.CONVOLUTION, stream)
    return frozenset({places.take("xvector.tdnn.linear", LayerType.CONVOLUTION, frozenset({last}))})


def _name_block(places: _Places, block: int, stream: frozenset[int]) -> frozenset[int]:
    """Layers until the batch norm after which the channels are halved: behind its convolution there is no gate."""
    layer = 1
    while (inner := _gated(places, stream)) is not None:
        name = f"xvector.block{block}.tdnnd{layer}"
        norm = places.take(f"{name}.norm", LayerType.SCALE, stream)
        places.take(f"{name}.linear1", LayerType.CONVOLUTION, frozenset({norm}))
        local = places.take(f"{name}.cam_layer.linear_local", LayerType.CONVOLUTION, inner, kernel=3)
        context = places.take(f"{name}.cam_layer.linear1", LayerType.CONVOLUTION, inner, kernel=1)
        gate = places.take(f"{name}.cam_layer.linear2", LayerType.CONVOLUTION, frozenset({context}))
        dilation = places.layers[local].dilation
        if places.dilations.setdefault(block, dilation) != dilation:
            raise _MisfitError(f"the layers of block {block} have several dilations")
        stream |= {local, gate}
        layer += 1
    return stream


def _gated(places: _Places, stream: frozenset[int]) -> frozenset[int] | None:
    """The first convolution of the layer that reads the stream; None: what reads it is no layer of a block."""
    for norm in places.fed_by(LayerType.SCALE, stream):
        for inner in places.fed_by(LayerType.CONVOLUTION, frozenset({norm})):
            if len(places.fed_by(LayerType.CONVOLUTION, frozenset({inner}))) == 2:
                return frozenset({inner})
    return None


def _check(state: dict[str, Tensor], dilations: dict[int, int]) -> None:
    """Shapes against each other."""
    try:
        config = CampplusConfig.of(state, dilations)
    except KeyError as error:
        raise _MisfitError(f"{error.args[0]} is missing") from None
    expected = expected_shapes(config)
    for key in sorted(expected.keys() ^ state.keys()):
        raise _MisfitError(f"{key} is {'missing' if key in expected else 'too much'}")
    for key, shape in expected.items():
        if tuple(state[key].shape) != shape:
            raise _MisfitError(f"{key} has shape {list(state[key].shape)}, not {list(shape)}")
