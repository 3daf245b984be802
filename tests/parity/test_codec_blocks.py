"""Each module of Spark-TTS's codec against the reference's outputs. Tolerances: tests/golden_spark/README.md.

Names are those of the state dict. The x-vector and its pooling, which inference does not need, have no module here.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bistream.bicodec.config import CodecConfig
from bistream.bicodec.frame_nets import Backbone, ConvNeXt, Encoder, Prenet
from bistream.bicodec.generator import Stage, WaveGenerator
from bistream.bicodec.layers import ConditionedNorm, Conv, Resampling, ResidualUnit, Upsampling
from bistream.bicodec.signal import WholeSignals
from tests.parity.golden_spark import tensors
from tests.parity.spark_codec import assert_close, codec

BLOCKS, EXTRA = tensors("blocks"), tensors("extra_blocks")
NOT_COMPUTED = {"speaker_encoder.speaker_encoder.pool"}
NAMES = sorted({key.removesuffix(".out") for key in BLOCKS if key.endswith(".out")} - NOT_COMPUTED)
SAMPLING = sorted(match[1] for key in EXTRA if (match := re.fullmatch(r"sampling\.(\w+)\.in", key)))
TOLERANCE = 1e-5
# The reference's own output is 1.7e-5 from the same in float64.
TOLERANCES = {"speaker_encoder.perceiver_sampler": 2e-4}


def postnet() -> Prenet:
    """Only training has it; it is a prenet without a condition."""
    config: CodecConfig = codec().config
    network = Prenet(config.postnet, None)
    network.load_state_dict(
        {key.removeprefix("postnet."): tensor for key, tensor in tensors("bicodec_weights").items() if key.startswith("postnet.")}
    )
    return network.eval()


def run(name: str, module: nn.Module, x: Tensor, condition: Tensor | None, context: Tensor | None) -> Any:
    """A module as the reference calls it; it passes [B, T, C] in places where we pass [B, C, T]."""
    signal = WholeSignals()
    match module:
        case Conv() | Upsampling():
            return module.over(x, signal)
        case Stage() | ResidualUnit() | Encoder():
            return module(x, signal)
        case WaveGenerator():
            return module(x, signal)[:, None]
        case Resampling():
            return module(x.transpose(1, 2), signal)
        case Backbone():
            return module(x, signal, condition).transpose(1, 2)
        case ConvNeXt() | Prenet():
            return module(x, signal, condition)
        case ConditionedNorm():
            return module(x, condition)
        case nn.ModuleList():  # a resampling block and its backbone
            y = module[0](x.transpose(1, 2), signal)
            return module[1](y, signal).transpose(1, 2)
    return module(x) if context is None else module(x, context)


def test_there_are_cases() -> None:
    assert len(NAMES) >= 40 and len(SAMPLING) >= 4


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_block(name: str) -> None:
    module = postnet() if name == "postnet" else codec().get_submodule(name)
    condition, context = BLOCKS.get(f"{name}.condition"), BLOCKS.get(f"{name}.context")
    assert_close(run(name, module, BLOCKS[f"{name}.in"], condition, context), BLOCKS[f"{name}.out"], TOLERANCES.get(name, TOLERANCE))


@torch.inference_mode()
def test_vector_of_the_voice() -> None:
    """From the tokens of the mel frames that the speaker encoder's first layer was given."""
    found = codec().voice_vector(codec().global_tokens(BLOCKS["speaker_encoder.speaker_encoder.layer1.in"]))
    assert_close(found, BLOCKS["d_vector"], TOLERANCE)


def weights(prefix: str) -> dict[str, Tensor]:
    return {
        key.removeprefix(f"{prefix}."): tensor
        for key, tensor in EXTRA.items()
        if key.startswith(f"{prefix}.") and key.rpartition(".")[2] not in ("in", "out", "condition")
    }


@pytest.mark.parametrize("name", SAMPLING)
@torch.inference_mode()
def test_resampling(name: str) -> None:
    kind, ratio = re.sub(r"\d", "", name), int(re.sub(r"\D", "", name) or 1)
    x = EXTRA[f"sampling.{name}.in"]
    module = Resampling(x.shape[2], up=ratio if kind == "up" else 1, down=ratio if kind == "down" else 1)
    module.load_state_dict(weights(f"sampling.{name}"))
    assert_close(module(x.transpose(1, 2), WholeSignals()), EXTRA[f"sampling.{name}.out"], TOLERANCE)


@pytest.mark.parametrize("name", ["convnext.plain", "convnext.conditioned"])
@torch.inference_mode()
def test_convnext(name: str) -> None:
    state, condition = weights(name), EXTRA.get(f"{name}.condition")
    intermediate, width = state["pwconv1.weight"].shape
    module = ConvNeXt(width, intermediate, None if condition is None else condition.shape[1])
    module.load_state_dict(state)
    assert_close(module(EXTRA[f"{name}.in"], WholeSignals(), condition), EXTRA[f"{name}.out"], TOLERANCE)


@torch.inference_mode()
def test_conditioned_norm() -> None:
    state = weights("adalayernorm")
    size, condition_size = state["scale.weight"].shape
    module = ConditionedNorm(size, condition_size, eps=1e-6)
    module.load_state_dict(state)
    assert_close(module(EXTRA["adalayernorm.in"], EXTRA["adalayernorm.condition"]), EXTRA["adalayernorm.out"], TOLERANCE)
