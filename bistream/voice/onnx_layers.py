"""The layers with weights of an ONNX graph, and which of them feeds which. No name is looked at: exporters make them up.

So every layer of a known network is named by its place in the graph, and a graph with any other structure is refused. Loads torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor

from bistream.errors import CheckpointError

GRAPH_INPUT = -1  # number of the graph's first input among the layers


class LayerType(Enum):
    CONVOLUTION = "convolution"
    LINEAR = "linear layer"
    NORM = "layer norm"
    SCALE = "batch norm"


@dataclass
class Layer:
    """weight: convolution [out, in / groups, K] or [out, in / groups, K, K], linear [out, in], norm [D]. feeds: numbers of the layers
    (``GRAPH_INPUT``: the first input) whose values reach this one through nodes without weights. dilation: of a convolution, over the
    last axis.

    A batch norm is weight and bias that each channel is multiplied with and moved by; one that alone reads what a convolution writes is
    part of the convolution.
    """

    kind: LayerType
    weight: NDArray[Any]
    bias: NDArray[Any] | None
    feeds: frozenset[int]
    dilation: int = 1


@dataclass(frozen=True)
class Layers:
    """In an order in which each comes after those that feed it. output: what feeds the graph's first output."""

    layers: tuple[Layer, ...]
    output: frozenset[int]


def read_layers(path: Path) -> Layers:
    """Raises ``CheckpointError`` for a file that is no ONNX graph."""
    try:
        graph = onnx.load(str(path)).graph
        return _Reader(graph).layers()
    except Exception as error:  # protobuf, onnx and numpy have exception types of their own
        raise CheckpointError(f"{path.name} could not be read ({type(error).__name__}); download it again.") from error


class _Reader:
    """One pass over the nodes, which the format keeps in topological order."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._constants: dict[str, NDArray[Any]] = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
        self._feeds: dict[str, frozenset[int]] = {}
        self._made_by: dict[str, int] = {}  # outputs of layers to which a bias may still be added
        self._convolutions: dict[str, int] = {}  # outputs of convolutions that one node reads
        self._readers = Counter(name for node in graph.node for name in _reads(node))
        self._quotients: set[str] = set()  # where the weight of a layer norm may come, when it is not one node
        self._layers: list[Layer] = []

    def layers(self) -> Layers:
        inputs = [item.name for item in self._graph.input if item.name not in self._constants]
        self._feeds[inputs[0]] = frozenset({GRAPH_INPUT})
        for node in self._graph.node:
            if not self._fold(node):
                self._visit(node)
        return Layers(tuple(self._layers), self._feeds.get(self._graph.output[0].name, frozenset()))

    def _fold(self, node: Any) -> bool:
        """Whether the node is a constant, or a constant in another form."""
        if node.op_type == "Constant":
            value = next((item.t for item in node.attribute if item.name == "value"), None)
            if value is not None:
                self._constants[node.output[0]] = numpy_helper.to_array(value)
            return True
        array = self._constant(node, 0) if node.op_type in ("Identity", "Cast", "Transpose") else None
        if array is None:
            return False
        self._constants[node.output[0]] = array.transpose(_attribute(node, "perm")) if node.op_type == "Transpose" else array
        return True

    def _visit(self, node: Any) -> None:
        feeds: frozenset[int] = frozenset()
        if node.op_type not in ("Shape", "Size"):  # sizes carry no values
            feeds = feeds.union(*(self._feeds.get(name, frozenset()) for name in _reads(node)))
        layer = self._layer(node, feeds)
        convolution = self._convolutions.get(node.input[0]) if layer is not None and layer.kind is LayerType.SCALE else None
        if layer is not None and convolution is not None:
            _scale_outputs(self._layers[convolution], layer)
        elif layer is not None:
            feeds = self._append(layer, node.output[0])
        else:
            self._add_bias(node)
        if node.op_type == "Div" or (node.op_type == "Cast" and node.input[0] in self._quotients):
            self._quotients.add(node.output[0])
        self._feeds |= dict.fromkeys(node.output, feeds)

    def _append(self, layer: Layer, output: str) -> frozenset[int]:
        """output: of its node. Returns what it feeds others as."""
        number = len(self._layers)
        self._layers.append(layer)
        if layer.kind is LayerType.CONVOLUTION and self._readers[output] == 1:
            self._convolutions[output] = number
        if layer.bias is None:
            self._made_by[output] = number
        return frozenset({number})

    def _batch_norm(self, node: Any, feeds: frozenset[int]) -> Layer | None:
        """(x - mean) / sqrt(variance + epsilon) * weight + bias."""
        weight, bias, mean, variance = (self._constant(node, position) for position in (1, 2, 3, 4))
        if weight is None or bias is None or mean is None or variance is None:
            return None
        epsilon = _attribute(node, "epsilon")
        scale = weight.astype(np.float64) / np.sqrt(variance.astype(np.float64) + (1e-5 if epsilon is None else epsilon))
        return Layer(LayerType.SCALE, scale, bias - mean * scale, feeds)

    def _layer(self, node: Any, feeds: frozenset[int]) -> Layer | None:
        weight = self._constant(node, 1)
        if node.op_type == "Mul":  # of a layer norm that is written as arithmetic
            return self._norm_of_arithmetic(node, feeds)
        if weight is None:
            return None
        if node.op_type == "BatchNormalization":
            return self._batch_norm(node, feeds)
        if node.op_type == "Conv":
            dilations = _attribute(node, "dilations") or [1]
            return Layer(LayerType.CONVOLUTION, weight, self._constant(node, 2), feeds, int(dilations[-1]))
        if node.op_type == "MatMul" and weight.ndim == 2:
            return Layer(LayerType.LINEAR, weight.T, None, feeds)
        if node.op_type == "Gemm":
            return Layer(LayerType.LINEAR, weight if _attribute(node, "transB") else weight.T, self._constant(node, 2), feeds)
        return Layer(LayerType.NORM, weight, self._constant(node, 2), feeds) if node.op_type == "LayerNormalization" else None

    def _norm_of_arithmetic(self, node: Any, feeds: frozenset[int]) -> Layer | None:
        for position in (0, 1):
            weight = self._constant(node, position)
            if weight is not None and weight.ndim == 1 and weight.size > 1 and node.input[1 - position] in self._quotients:
                return Layer(LayerType.NORM, weight, None, feeds)
        return None

    def _add_bias(self, node: Any) -> None:
        """Takes a vector that is added right after a layer as this layer's bias."""
        for position in (0, 1) if node.op_type == "Add" else ():
            bias, number = self._constant(node, position), self._made_by.get(node.input[1 - position])
            if bias is not None and number is not None and bias.ndim == 1 and bias.size > 1:
                self._layers[number].bias = bias

    def _constant(self, node: Any, position: int) -> NDArray[Any] | None:
        return self._constants.get(node.input[position]) if len(node.input) > position else None


def _scale_outputs(convolution: Layer, norm: Layer) -> None:
    """Make the batch norm behind a convolution part of it."""
    scale = norm.weight
    convolution.weight = convolution.weight * scale.reshape(-1, *[1] * (convolution.weight.ndim - 1))
    convolution.bias = norm.bias if convolution.bias is None or norm.bias is None else convolution.bias * scale + norm.bias


def _attribute(node: Any, name: str) -> Any:
    """Its value; None where it is not set."""
    return next((onnx.helper.get_attribute_value(item) for item in node.attribute if item.name == name), None)


def _reads(node: Any) -> Iterator[str]:
    """Names of the tensors that a node reads, also in its branches."""
    yield from node.input
    for item in node.attribute:
        for inner in item.g.node:
            yield from _reads(inner)


class MisfitError(Exception):
    """What is different in the graph."""


class Places:
    """Finds layers by type and by what feeds them, and remembers their names."""

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        self.layers = layers
        self.names: dict[int, str] = {}

    def fed_by(self, kind: LayerType, feeds: frozenset[int]) -> list[int]:
        return [number for number, layer in enumerate(self.layers) if layer.kind is kind and layer.feeds == feeds]

    def take(self, name: str, kind: LayerType, feeds: frozenset[int], kernel: int | None = None) -> int:
        """The number of the only such layer. kernel: last axis of the weight; None: any. Raises ``MisfitError``."""
        numbers = [number for number in self.fed_by(kind, feeds) if kernel is None or self.layers[number].weight.shape[-1] == kernel]
        if len(numbers) != 1:
            raise MisfitError(f"it has {len(numbers)} {kind.value}s in the place of {name}")
        self.names[numbers[0]] = name
        return numbers[0]


def read_weights(
    path: Path,
    network: str,
    name_layers: Callable[[Places], int],
    expected: Callable[[Mapping[str, Tensor]], Mapping[str, tuple[int, ...]]],
) -> dict[str, Tensor]:
    """A known network's weights, float32. Raises ``CheckpointError`` for a file that cannot be read or has another structure.

    network: as messages call it; with an underline the parameter that leaves it to onnxruntime. name_layers: names all of them, and returns
    the number of the last. expected: the shapes of all weights of a network of these sizes. Both raise ``MisfitError``.
    """
    found = read_layers(path)
    places = Places(found.layers)
    try:
        last = name_layers(places)
        if found.output != {last} or len(places.names) != len(found.layers):
            raise MisfitError(f"only {len(places.names)} of its {len(found.layers)} layers with weights have their place")
        state: dict[str, Tensor] = {}
        for number, name in places.names.items():
            for part in ("weight", "bias"):
                if (array := getattr(found.layers[number], part)) is not None:
                    state[f"{name}.{part}"] = torch.from_numpy(_as_float32(array))
        _check_shapes(state, expected(state))
    except MisfitError as misfit:
        raise CheckpointError(
            f"{path.name} is not built like the released {network} ({misfit}); "
            f"set {network.replace(' ', '_')} to onnx, which runs any graph."
        ) from None
    return state


def _check_shapes(state: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    for key in sorted(expected.keys() ^ state.keys()):
        raise MisfitError(f"{key} is {'missing' if key in expected else 'too much'}")
    for key, shape in expected.items():
        if tuple(state[key].shape) != shape:
            raise MisfitError(f"{key} has shape {list(state[key].shape)}, not {list(shape)}")


def _as_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    """A copy: the file's arrays are read-only, and may be float16. Their order is the file's, whose matrices are transposed here; who has
    a GPU rearranges half a gigabyte there."""
    return np.array(array, dtype=np.float32, order="K")
