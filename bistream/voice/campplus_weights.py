"""Weights of the speaker encoder from its ONNX file: every layer is known by what feeds it and what it feeds (``onnx_layers``).

In the released file the kernels of the front end have made-up names, and another export may fold other batch norms into convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from bistream.voice.campplus_network import CampplusConfig, expected_shapes
from bistream.voice.onnx_layers import GRAPH_INPUT, LayerType, MisfitError, Places, read_weights


def read_campplus(path: Path) -> tuple[dict[str, Tensor], dict[int, int]]:
    """The network's weights, and the dilation of each block. Raises as ``read_weights``."""
    dilations: dict[int, int] = {}

    def expected(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        try:
            return expected_shapes(CampplusConfig.of(state, dilations))
        except KeyError as error:
            raise MisfitError(f"{error.args[0]} is missing") from None

    state = read_weights(path, "speaker encoder", lambda places: _name_layers(places, dilations), expected)
    return state, dilations


def _name_layers(places: Places, dilations: dict[int, int]) -> int:
    """stream: the layers whose values, added or joined, are what the next part reads."""
    stream = _name_front(places)
    block = 1
    while True:
        stream = _name_block(places, block, stream, dilations)
        norm = places.take(f"xvector.transit{block}.norm", LayerType.SCALE, stream)
        stream = frozenset({places.take(f"xvector.transit{block}.linear", LayerType.CONVOLUTION, frozenset({norm}))})
        if not places.fed_by(LayerType.SCALE, stream):
            break
        block += 1
    last = places.take("xvector.dense.linear", LayerType.CONVOLUTION, stream)
    return places.take("xvector.dense.norm", LayerType.SCALE, frozenset({last}))


def _name_front(places: Places) -> frozenset[int]:
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


def _name_block(places: Places, block: int, stream: frozenset[int], dilations: dict[int, int]) -> frozenset[int]:
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
        if dilations.setdefault(block, dilation) != dilation:
            raise MisfitError(f"the layers of block {block} have several dilations")
        stream |= {local, gate}
        layer += 1
    return stream


def _gated(places: Places, stream: frozenset[int]) -> frozenset[int] | None:
    """The first convolution of the layer that reads the stream; None: what reads it is no layer of a block."""
    for norm in places.fed_by(LayerType.SCALE, stream):
        for inner in places.fed_by(LayerType.CONVOLUTION, frozenset({norm})):
            if len(places.fed_by(LayerType.CONVOLUTION, frozenset({inner}))) == 2:
                return frozenset({inner})
    return None
