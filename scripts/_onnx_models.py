"""Writes the two ONNX front-end models with the released files' inputs, outputs and dynamic axes.

Weights go in as numpy arrays; an ``onnx.ModelProto`` comes out. Called by ``make_checkpoint.py`` and by tests that compare
the speech tokenizer with ``bistream.voice.s3_network``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.voice.s3_network import CODE_BASE, DIGIT_SCALE, FSMN_KERNEL, HEAD_SIZE, ROTARY_BASE

OPSET = 17
IR_VERSION = 8

# Names that the exporter generated in the released file, and on which the package s3tokenizer relies.
RELEASED_NAMES = {
    "onnx::Conv_2216": "encoder.conv1.weight",
    "onnx::Conv_2217": "encoder.conv1.bias",
    "onnx::Conv_2218": "encoder.conv2.weight",
    "onnx::Conv_2219": "encoder.conv2.bias",
    "onnx::MatMul_2536": "quantizer._codebook.project_down.weight",
    "quantizer.project_in.bias": "quantizer._codebook.project_down.bias",
}
Weights = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class TokenizerForm:
    """How the released file of a version is written. has_own_names: the initialisers of convolutions and quantizer are called as in
    ``RELEASED_NAMES``. has_norm_nodes: a layer norm is one node, and not arithmetic that ends in ``Mul`` and ``Add``."""

    name: str
    attention_norm_eps: float
    has_own_names: bool
    has_norm_nodes: bool


FORMS = {
    COSYVOICE2.speech_tokenizer_file: TokenizerForm("speech_tokenizer_v2", COSYVOICE2.tokenizer_norm_eps, True, True),
    COSYVOICE3.speech_tokenizer_file: TokenizerForm("speech_tokenizer_v3", COSYVOICE3.tokenizer_norm_eps, False, False),
}


class GraphBuilder:
    """Collects nodes and initializers. Constants are ``Constant`` nodes, so that initializers are weights only."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._numbers = itertools.count()
        self._constants: dict[tuple[str, str], str] = {}

    def add(self, operation: str, *inputs: str, name: str = "", output: str = "", outputs: int = 1, **attributes: Any) -> str:
        """Append a node; returns the name of its (first) output. Further outputs are ``<first>.1`` and so on."""
        first = output or f"{operation}_{next(self._numbers)}"
        names = [first, *(f"{first}.{index}" for index in range(1, outputs))]
        self.nodes.append(helper.make_node(operation, list(inputs), names, name=name or f"/{first}", **attributes))
        return first

    def weight(self, name: str, array: NDArray[np.float32]) -> str:
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def constant(self, value: ArrayLike, dtype: type) -> str:
        array: NDArray[Any] = np.asarray(value, dtype=dtype)
        key = (repr(array.tolist()), array.dtype.name)
        if key not in self._constants:
            self._constants[key] = self.add("Constant", value=numpy_helper.from_array(array))
        return self._constants[key]

    def model(self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, name, list(inputs), list(outputs), self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="bistream")
        model.ir_version = IR_VERSION
        return model


class _SpeechTokenizerGraph(GraphBuilder):
    """Node and initializer names follow the released file where its public loaders rely on them."""

    def __init__(self, weights: Weights, form: TokenizerForm) -> None:
        super().__init__()
        self.weights = weights
        self.form = form

    def named_weight(self, name: str) -> str:
        """name: a key of ``RELEASED_NAMES``."""
        key = RELEASED_NAMES[name]
        own = name if self.form.has_own_names else key.replace("quantizer._codebook.project_down", "quantizer.project_in")
        return self.weight(own, self.weights[key].T if "MatMul" in name else self.weights[key])

    def gelu(self, x: str) -> str:
        scaled = self.add("Div", x, self.constant(np.sqrt(2.0), np.float32))
        one_plus_erf = self.add("Add", self.add("Erf", scaled), self.constant(1.0, np.float32))
        return self.add("Mul", self.add("Mul", x, one_plus_erf), self.constant(0.5, np.float32))

    def linear(self, x: str, key: str, node: str, bias: bool = True) -> str:
        product = self.add("MatMul", x, self.weight(f"onnx::{key}", self.weights[f"{key}.weight"].T), name=f"{node}/MatMul")
        return self.add("Add", self.weight(f"{key}.bias", self.weights[f"{key}.bias"]), product, name=f"{node}/Add") if bias else product

    def layer_norm(self, x: str, key: str, node: str, epsilon: float) -> str:
        scale = self.weight(f"{key}.weight", self.weights[f"{key}.weight"])
        shift = self.weight(f"{key}.bias", self.weights[f"{key}.bias"])
        if self.form.has_norm_nodes:
            return self.add("LayerNormalization", x, scale, shift, name=f"{node}/LayerNormalization", axis=-1, epsilon=epsilon)
        centred = self.add("Sub", x, self.add("ReduceMean", x, axes=[-1]), name=f"{node}/Sub")
        square = self.add("Pow", centred, self.constant(2.0, np.float32), name=f"{node}/Pow")
        variance = self.add("Add", self.add("ReduceMean", square, axes=[-1]), self.constant(epsilon, np.float32), name=f"{node}/Add")
        quotient = self.add("Div", centred, self.add("Sqrt", variance), name=f"{node}/Div")
        return self.add("Add", self.add("Mul", quotient, scale, name=f"{node}/Mul"), shift, name=f"{node}/Add_1")

    def size(self, x: str, axis: int) -> str:
        return self.add("Gather", self.add("Shape", x), self.constant(axis, np.int64), axis=0)

    def positions(self, x: str, axis: int) -> str:
        return self.add("Range", self.constant(0, np.int64), self.size(x, axis), self.constant(1, np.int64))

    def mask(self, lengths: str, x: str, axis: int) -> str:
        """lengths int64 [B] -> float32 [B, T], 1 within the length."""
        inside = self.add("Less", self.positions(x, axis), self.add("Unsqueeze", lengths, self.constant([1], np.int64)))
        return self.add("Cast", inside, to=TensorProto.FLOAT)

    def convolution(self, x: str, lengths: str, names: tuple[str, str]) -> str:
        masked = self.add("Mul", x, self.add("Unsqueeze", self.mask(lengths, x, 2), self.constant([1], np.int64)))
        weight, bias = map(self.named_weight, names)
        node = f"/{RELEASED_NAMES[names[0]].split('.')[1]}/Conv"
        return self.gelu(self.add("Conv", masked, weight, bias, name=node, kernel_shape=[3], strides=[2], pads=[1, 1]))

    def halve(self, lengths: str) -> str:
        one, two = self.constant(1, np.int64), self.constant(2, np.int64)
        return self.add("Div", self.add("Add", lengths, one), two)

    def rotary(self, x: str) -> tuple[str, str]:
        """Cosines and sines [T, 1, 64] for x [B, T, D]."""
        frequencies = ROTARY_BASE ** (-np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
        positions = self.add("Cast", self.positions(x, 1), to=TensorProto.FLOAT)
        column = self.add("Unsqueeze", positions, self.constant([1, 2], np.int64))
        angles = self.add("Mul", column, self.constant(np.concatenate([frequencies, frequencies]), np.float32))
        return self.add("Cos", angles), self.add("Sin", angles)

    def rotate(self, heads: str, cosine: str, sine: str) -> str:
        left = self.add("Split", heads, outputs=2, axis=-1)
        turned = self.add("Concat", self.add("Neg", f"{left}.1"), left, axis=-1)
        return self.add("Add", self.add("Mul", heads, cosine), self.add("Mul", turned, sine))

    def attention(self, x: str, layer: int, mask: str, bias: str, rotary: tuple[str, str], width: int) -> str:
        key, node = f"encoder.blocks.{layer}.attn", f"/blocks.{layer}/attn"
        heads = self.constant([0, 0, width // HEAD_SIZE, HEAD_SIZE], np.int64)
        value = self.linear(x, f"{key}.value", f"{node}/value")
        query = self.rotate(self.add("Reshape", self.linear(x, f"{key}.query", f"{node}/query"), heads), *rotary)
        keys = self.rotate(self.add("Reshape", self.linear(x, f"{key}.key", f"{node}/key", bias=False), heads), *rotary)
        query = self.add("Transpose", query, perm=[0, 2, 1, 3])
        scores = self.add("MatMul", query, self.add("Transpose", keys, perm=[0, 2, 3, 1]))
        scores = self.add("Add", self.add("Mul", scores, self.constant(HEAD_SIZE**-0.5, np.float32)), bias)
        per_head = self.add("Transpose", self.add("Reshape", value, heads), perm=[0, 2, 1, 3])
        attended = self.add("MatMul", self.add("Softmax", scores, axis=-1), per_head)
        joined = self.add("Reshape", self.add("Transpose", attended, perm=[0, 2, 1, 3]), self.constant([0, 0, width], np.int64))
        masked = self.add("Mul", value, mask)
        kernel = self.weight(f"{key}.fsmn_block.weight", self.weights[f"{key}.fsmn_block.weight"])
        memory = self.add(
            "Conv",
            self.add("Transpose", masked, perm=[0, 2, 1]),
            kernel,
            name=f"{node}/fsmn_block/Conv",
            kernel_shape=[FSMN_KERNEL],
            pads=[FSMN_KERNEL // 2] * 2,
            group=width,
        )
        memory = self.add("Mul", self.add("Add", self.add("Transpose", memory, perm=[0, 2, 1]), masked), mask)
        return self.add("Add", self.linear(joined, f"{key}.out", f"{node}/out"), memory)

    def block(self, x: str, layer: int, mask: str, bias: str, rotary: tuple[str, str], width: int) -> str:
        key, node = f"encoder.blocks.{layer}", f"/blocks.{layer}"
        normed = self.layer_norm(x, f"{key}.attn_ln", f"{node}/attn_ln", self.form.attention_norm_eps)
        x = self.add("Add", x, self.attention(normed, layer, mask, bias, rotary, width))
        normed = self.layer_norm(x, f"{key}.mlp_ln", f"{node}/mlp_ln", 1e-5)
        inner = self.gelu(self.linear(normed, f"{key}.mlp.0", f"{node}/mlp/mlp.0"))
        return self.add("Add", x, self.linear(inner, f"{key}.mlp.2", f"{node}/mlp/mlp.2"))

    def quantize(self, x: str) -> None:
        """The last nodes: base-3 digits of each frame to ``indices``."""
        product = self.add("MatMul", x, self.named_weight("onnx::MatMul_2536"), name="/quantizer/project_in/MatMul")
        projected = self.add("Add", self.named_weight("quantizer.project_in.bias"), product, name="/quantizer/project_in/Add")
        digits = self.add("Round", self.add("Mul", self.add("Tanh", projected), self.constant(DIGIT_SCALE, np.float32)))
        powers = self.constant(float(CODE_BASE) ** np.arange(self.weights["quantizer._codebook.project_down.bias"].size), np.float32)
        weighted = self.add("Mul", self.add("Add", digits, self.constant(1.0, np.float32)), powers)
        codes = self.add("ReduceSum", weighted, self.constant([-1], np.int64), keepdims=0)
        self.add("Cast", codes, output="indices", to=TensorProto.INT32)


def speech_tokenizer_model(weights: Weights, file_name: str = COSYVOICE2.speech_tokenizer_file) -> onnx.ModelProto:
    """``file_name``, as its version is released, from the state dict of ``S3Network``.

    Inputs ``feats`` float32 [B, 128, T] and ``feats_length`` int32 [B]; output ``indices`` int32 [B, ceil(T / 4)].
    """
    width, mel_bins, _ = weights["encoder.conv1.weight"].shape
    graph = _SpeechTokenizerGraph(weights, FORMS[file_name])
    lengths = graph.add("Cast", "feats_length", to=TensorProto.INT64)
    x = graph.convolution("feats", lengths, ("onnx::Conv_2216", "onnx::Conv_2217"))
    lengths = graph.halve(lengths)
    x = graph.convolution(x, lengths, ("onnx::Conv_2218", "onnx::Conv_2219"))
    lengths = graph.halve(lengths)
    x = graph.add("Transpose", x, perm=[0, 2, 1])
    inside = graph.mask(lengths, x, 1)
    mask = graph.add("Unsqueeze", inside, graph.constant([2], np.int64))
    outside = graph.add("Sub", graph.constant(1.0, np.float32), graph.add("Unsqueeze", inside, graph.constant([1, 2], np.int64)))
    bias = graph.add("Mul", outside, graph.constant(-1e10, np.float32))
    rotary = graph.rotary(x)
    layers = sum(key.endswith(".attn_ln.weight") for key in weights)
    for layer in range(layers):
        x = graph.block(x, layer, mask, bias, rotary, width)
    graph.quantize(x)
    return graph.model(
        FORMS[file_name].name,
        [
            helper.make_tensor_value_info("feats", TensorProto.FLOAT, ["batch", mel_bins, "frames"]),
            helper.make_tensor_value_info("feats_length", TensorProto.INT32, ["batch"]),
        ],
        [helper.make_tensor_value_info("indices", TensorProto.INT32, ["batch", "tokens"])],
    )


def speaker_encoder_model(convolutions: Sequence[NDArray[np.float32]], projection: NDArray[np.float32]) -> onnx.ModelProto:
    """``campplus.onnx``: input ``input`` float32 [B, T, 80], output ``output`` float32 [B, 192].

    A stand-in for CAM++ with its inputs and outputs: 1-d convolutions [C_out, C_in, K] with ReLU, mean and standard deviation
    over time, projection [2 C, 192]. The released file has another architecture inside.
    """
    graph = GraphBuilder()
    x = graph.add("Transpose", "input", perm=[0, 2, 1])
    for index, weight in enumerate(convolutions):
        kernel = weight.shape[2]
        x = graph.add("Conv", x, graph.weight(f"convolution.{index}", weight), kernel_shape=[kernel], pads=[kernel // 2] * 2)
        x = graph.add("Relu", x)
    mean = graph.add("ReduceMean", x, axes=[2], keepdims=1)
    centred = graph.add("Sub", x, mean)
    variance = graph.add("ReduceMean", graph.add("Mul", centred, centred), axes=[2], keepdims=1)
    deviation = graph.add("Sqrt", graph.add("Add", variance, graph.constant(1e-5, np.float32)))
    pooled = graph.add("Squeeze", graph.add("Concat", mean, deviation, axis=1), graph.constant([2], np.int64))
    graph.add("MatMul", pooled, graph.weight("projection", projection), output="output")
    bins = convolutions[0].shape[1]
    return graph.model(
        "campplus",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", "frames", bins])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", projection.shape[1]])],
    )
