"""The same ONNX graph in other forms: other names, other order of nodes, other operators, half precision."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor

from bistream.voice.s3_network import S3Config, expected_shapes
from scripts._onnx_models import speech_tokenizer_model

SMALL = S3Config(mel_bins=16, width=128, layers=2, digits=6)


def random_state(config: S3Config = SMALL) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {key: 0.1 * torch.randn(shape, generator=generator) for key, shape in expected_shapes(config).items()}


def model_of(state: Mapping[str, Tensor]) -> onnx.ModelProto:
    return speech_tokenizer_model({key: tensor.numpy() for key, tensor in state.items()})


def renamed(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """Tensors and nodes have numbers for names; what the caller sees (inputs, outputs) too."""
    graph = model.graph
    names = {name for node in graph.node for name in (*node.input, *node.output)} | {item.name for item in graph.initializer}
    numbers = rng.sample(range(10 * len(names)), len(names))
    new = dict(zip(sorted(names), map("onnx::{}".format, numbers), strict=True))
    for node in graph.node:
        node.name = ""
        node.input[:] = [new[name] for name in node.input]
        node.output[:] = [new[name] for name in node.output]
    for item in (*graph.initializer, *graph.input, *graph.output):
        item.name = new[item.name]
    return model


def reordered(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """Nodes in another topological order, initializers in any."""
    graph = model.graph
    known = {item.name for item in (*graph.initializer, *graph.input)}
    waiting, ordered = list(graph.node), []
    while waiting:
        ready = [node for node in waiting if known.issuperset(node.input)]
        node = rng.choice(ready)
        waiting.remove(node)
        known.update(node.output)
        ordered.append(node)
    initializers = rng.sample(list(graph.initializer), len(graph.initializer))
    for field, items in ((graph.node, ordered), (graph.initializer, initializers)):
        del field[:]
        field.extend(items)
    return model


def hidden_behind(operator: str) -> Callable[[onnx.ModelProto, random.Random], onnx.ModelProto]:
    """Half of the matrices reach their nodes through an operator that leaves them as they are, or are stored the other way round."""

    of_operators: dict[str, dict[str, Any]] = {"Transpose": {"perm": [1, 0]}, "Cast": {"to": onnx.TensorProto.FLOAT}}
    attributes = of_operators.get(operator, {})

    def change(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
        nodes = []
        for item in model.graph.initializer:
            array = numpy_helper.to_array(item)
            if array.ndim == 2 and rng.random() < 0.5:
                stored = array.T if operator == "Transpose" else array
                nodes.append(helper.make_node(operator, [f"{item.name}_stored"], [item.name], **attributes))
                item.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(stored), f"{item.name}_stored"))
        in_front = [*nodes, *model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend(in_front)
        return model

    return change


def in_half_precision(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """Weights as float16, and nodes that make them float32 again."""
    hidden_behind("Cast")(model, rng)
    for item in model.graph.initializer:
        if item.name.endswith("_stored"):
            item.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(item).astype(np.float16), item.name))
    return model


def wholly_in_half_precision(model: onnx.ModelProto) -> onnx.ModelProto:
    """Weights, constants, inputs and outputs."""
    graph, single = model.graph, onnx.TensorProto.FLOAT
    constants = [item.t for node in graph.node for item in node.attribute if item.name == "value"]
    for tensor in (*graph.initializer, *constants):
        if tensor.data_type == single:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for item in (item for node in graph.node if node.op_type == "Cast" for item in node.attribute if item.name == "to"):
        item.i = onnx.TensorProto.FLOAT16 if item.i == single else item.i
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == single:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return model


def weighted_nodes(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, dict[str, NDArray[Any]]]]:
    """Nodes that read a matrix or kernel, with the arrays that they read."""
    arrays = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    for node in model.graph.node:
        read = {name: arrays[name] for name in node.input if name in arrays}
        if any(array.ndim > 1 for array in read.values()):
            yield node, read


def without(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Its output is its input."""
    for reader in model.graph.node:
        reader.input[:] = [node.input[0] if name == node.output[0] else name for name in reader.input]
    model.graph.node.remove(node)


def twice(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Once more on its own output."""
    again = onnx.NodeProto()
    again.CopyFrom(node)
    again.input[0], again.output[0] = node.output[0], f"{node.output[0]}_again"
    for reader in model.graph.node:
        reader.input[:] = [again.output[0] if name == node.output[0] else name for name in reader.input]
    model.graph.node.insert(list(model.graph.node).index(node) + 1, again)


def with_another_structure(model: onnx.ModelProto, choice: int, is_twice: bool) -> onnx.ModelProto:
    """One of its nodes with weights is there twice, or not at all."""
    nodes = [node for node, _ in weighted_nodes(model)]
    (twice if is_twice else without)(model, nodes[choice % len(nodes)])
    return model
