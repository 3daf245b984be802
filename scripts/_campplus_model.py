"""Writes ``campplus.onnx`` as the released file is written: the same layers, operators, inputs and outputs, with any weights.

The state dict of ``bistream.voice.campplus_network`` goes in, an ``onnx.ModelProto`` comes out. Batch norms that follow a convolution are
part of it, as in the released file, where the exporter put them; the others are nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bistream.voice.campplus_network import FRAMES_PER_POSITION, SEGMENT, CampplusConfig
from bistream.voice.features import KALDI_MEL_BINS
from scripts._onnx_models import GraphBuilder

_EPSILON = 1e-5  # of the batch norms
Weights = Mapping[str, NDArray[np.float32]]


class _CampplusGraph(GraphBuilder):
    def __init__(self, weights: Weights, config: CampplusConfig) -> None:
        super().__init__()
        self.weights = weights
        self.config = config

    def convolution(self, x: str, name: str, strides: list[int], pads: list[int], dilation: int = 1) -> str:
        """pads: for each axis, the same at both ends."""
        arrays = [self.weights.get(f"{name}.{part}") for part in ("weight", "bias")]
        inputs = [self.weight(f"{name}.{part}", array) for part, array in zip(("weight", "bias"), arrays, strict=True) if array is not None]
        kernel = list(self.weights[f"{name}.weight"].shape[2:])
        node = f"/{name.replace('.', '/')}/Conv"
        return self.add(
            "Conv", x, *inputs, name=node, kernel_shape=kernel, strides=strides, pads=2 * pads, dilations=[dilation] * len(pads)
        )

    def norm(self, x: str, name: str) -> str:
        """Scale and shift as a batch norm whose mean is 0 and whose variance is 1."""
        scale, shift = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        arrays = {"weight": scale, "bias": shift, "running_mean": np.zeros_like(shift), "running_var": np.full_like(scale, 1 - _EPSILON)}
        inputs = [self.weight(f"{name}.{part}", array) for part, array in arrays.items()]
        return self.add("BatchNormalization", x, *inputs, epsilon=_EPSILON)

    def relu(self, x: str) -> str:
        return self.add("Relu", x)

    def front(self, x: str) -> str:
        """[B, 80, T] -> [B, channels * 10, T]."""
        x = self.add("Unsqueeze", x, self.constant([1], np.int64))
        x = self.relu(self.convolution(x, "head.conv1", [1, 1], [1, 1]))
        for block in ("head.layer1.0", "head.layer1.1", "head.layer2.0", "head.layer2.1"):
            stride = [2, 1] if block.endswith(".0") else [1, 1]
            inner = self.relu(self.convolution(x, f"{block}.conv1", stride, [1, 1]))
            outer = self.convolution(inner, f"{block}.conv2", [1, 1], [1, 1])
            shortcut = self.convolution(x, f"{block}.shortcut.0", stride, [0, 0]) if stride == [2, 1] else x
            x = self.relu(self.add("Add", outer, shortcut))
        x = self.relu(self.convolution(x, "head.conv2", [2, 1], [1, 1]))
        return self.add("Reshape", x, self.constant([0, self.weights["xvector.tdnn.linear.weight"].shape[1], -1], np.int64))

    def segment_means(self, x: str) -> str:
        """Of [B, C, P]: at every position the mean of the segment that it is in."""
        pooled = self.add("AveragePool", x, kernel_shape=[SEGMENT], strides=[SEGMENT], ceil_mode=1, count_include_pad=1, pads=[0, 0])
        shape = self.add("Concat", self.add("Shape", pooled), self.constant([SEGMENT], np.int64), axis=0)
        repeated = self.add("Expand", self.add("Unsqueeze", pooled, self.constant([-1], np.int64)), shape)
        flat = self.add("Reshape", repeated, self.constant([0, 0, -1], np.int64))
        end = self.add("Gather", self.add("Shape", x), self.constant([2], np.int64), axis=0)
        return self.add("Slice", flat, self.constant([0], np.int64), end, self.constant([2], np.int64))

    def layer(self, x: str, name: str, dilation: int) -> str:
        inner = self.relu(self.convolution(self.relu(self.norm(x, f"{name}.norm")), f"{name}.linear1", [1], [0]))
        local = self.convolution(inner, f"{name}.cam_layer.linear_local", [1], [dilation], dilation)
        context = self.add("Add", self.add("ReduceMean", inner, axes=[-1], keepdims=1), self.segment_means(inner))
        context = self.relu(self.convolution(context, f"{name}.cam_layer.linear1", [1], [0]))
        gate = self.add("Sigmoid", self.convolution(context, f"{name}.cam_layer.linear2", [1], [0]))
        return self.add("Concat", x, self.add("Mul", local, gate), axis=1)

    def pooled(self, x: str) -> str:
        """Mean and deviation over time, the latter of a sample: [B, 2 C]."""
        mean = self.add("ReduceMean", x, axes=[-1], keepdims=1)
        centred = self.add("Sub", x, mean)
        variance = self.add("ReduceMean", self.add("Mul", centred, centred), axes=[-1], keepdims=0)
        count = self.add("Cast", self.add("Gather", self.add("Shape", x), self.constant(2, np.int64), axis=0), to=TensorProto.FLOAT)
        total = self.add("Mul", variance, count)
        variance = self.add("Div", total, self.add("Sub", count, self.constant(1.0, np.float32)))
        return self.add("Concat", self.add("Squeeze", mean, self.constant([-1], np.int64)), self.add("Sqrt", variance), axis=-1)


def campplus_model(weights: Weights, config: CampplusConfig) -> onnx.ModelProto:
    """Input ``input`` float32 [B, T, 80], output ``output`` float32 [B, size]. weights: state dict of ``CampplusNetwork``."""
    graph = _CampplusGraph(weights, config)
    x = graph.front(graph.add("Transpose", "input", perm=[0, 2, 1]))
    x = graph.relu(graph.convolution(x, "xvector.tdnn.linear", [FRAMES_PER_POSITION], [2]))
    for number, (layers, dilation) in enumerate(config.blocks, 1):
        for layer in range(1, layers + 1):
            x = graph.layer(x, f"xvector.block{number}.tdnnd{layer}", dilation)
        x = graph.convolution(graph.relu(graph.norm(x, f"xvector.transit{number}.norm")), f"xvector.transit{number}.linear", [1], [0])
    pooled = graph.add("Unsqueeze", graph.pooled(graph.relu(x)), graph.constant([-1], np.int64))
    vector = graph.convolution(pooled, "xvector.dense.linear", [1], [0])
    normed = graph.norm(graph.add("Squeeze", vector, graph.constant([-1], np.int64)), "xvector.dense.norm")
    graph.add("Identity", normed, output="output")
    return graph.model(
        "campplus",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", "frames", KALDI_MEL_BINS])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", config.size])],
    )
