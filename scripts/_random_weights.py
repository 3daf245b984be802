"""Seeded random tensors for every key of a state dict, scaled so that activations stay near one and outputs vary.

Shapes go in (``expected_shapes`` of each stage), tensors come out; every tensor has its own generator, seeded by checkpoint
seed, file and key, so no tensor depends on another. Called by ``make_checkpoint.py``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from bistream.checkpoints.config import CausalVocoderConfig, VocoderConfig
from bistream.token2mel.dit.estimator import rotation

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


@dataclass(frozen=True)
class Scale:
    """A normal distribution for one tensor."""

    std: float
    mean: float = 0.0


@dataclass(frozen=True)
class Drawer:
    """Draws tensors. The same seed and device type give the same bytes; CPU and CUDA draw different numbers."""

    seed: int
    device: str = "cpu"

    def draw(self, file_name: str, key: str, shape: Shape, scale: Scale) -> torch.Tensor:
        digest = hashlib.sha256(f"{self.seed}/{file_name}/{key}".encode()).digest()
        generator = torch.Generator(self.device).manual_seed(int.from_bytes(digest[:7], "little"))
        tensor = torch.empty(shape, dtype=torch.float32, device=self.device)
        return tensor.normal_(scale.mean, scale.std, generator=generator).cpu()

    def state_dict(self, file_name: str, shapes: Shapes, rule: Callable[[str, Shape], Scale]) -> dict[str, torch.Tensor]:
        """All tensors of one file, drawn by several threads (torch releases the GIL while it draws)."""
        with ThreadPoolExecutor() as pool:
            tensors = pool.map(lambda item: self.draw(file_name, item[0], item[1], rule(*item)), shapes.items())
            return dict(zip(shapes, tensors, strict=True))


def fan_in_scale(shape: Shape, gain: float = 1.0) -> Scale:
    """Unit variance in, ``gain`` squared out, for a linear or convolution weight [out, in, ...]."""
    return Scale(gain / math.sqrt(math.prod(shape[1:])))


def common_scale(key: str, shape: Shape) -> Scale:
    """Rule for most tensors: norm weights around one, biases small, embeddings of unit variance, the rest by fan-in."""
    if "embedding." in key or "embed_tokens." in key:
        return Scale(1.0)
    if key.endswith("alpha"):
        return Scale(0.1, mean=1.0)
    if len(shape) == 1:
        return Scale(0.1, mean=1.0) if key.endswith("weight") else Scale(0.1)
    if "pos_bias" in key:
        return Scale(0.1)
    return fan_in_scale(shape)


SPEECH_HEAD_GAIN = 3.0  # a few likely tokens, with margins that rounding rarely flips


def language_model_state(drawer: Drawer, shapes: Shapes) -> dict[str, torch.Tensor]:
    """``llm.pt``. The text head is the text embedding itself: one storage under two keys, as in the released file."""
    embedding, head = "llm.model.model.embed_tokens.weight", "llm.model.lm_head.weight"

    def rule(key: str, shape: Shape) -> Scale:
        return fan_in_scale(shape, SPEECH_HEAD_GAIN) if key == "llm_decoder.weight" else common_scale(key, shape)

    state = drawer.state_dict("llm.pt", {key: shape for key, shape in shapes.items() if key != head}, rule)
    if head in shapes:
        state[head] = state[embedding]
    return state


MODULATION_GAIN = 0.3  # of shifts, scales and gates of a transformer's block: what it adds stays below what it gets
_ROTARY = "decoder.estimator.rotary_embed.inv_freq"


def flow_state(drawer: Drawer, shapes: Shapes) -> dict[str, torch.Tensor]:
    """``flow.pt`` of either family."""

    def rule(key: str, shape: Shape) -> Scale:
        if key == "spk_embed_affine_layer.weight":
            return Scale(1.0)  # the embedding is normalised to length one before it
        if "_norm.linear.weight" in key or key.endswith("norm_out.linear.weight"):
            return fan_in_scale(shape, gain=MODULATION_GAIN)
        return common_scale(key, shape)

    state = drawer.state_dict("flow.pt", shapes, rule)
    if _ROTARY in state:
        state[_ROTARY] = rotation(torch.tensor([1]), 1, 2 * len(state[_ROTARY]))[0, 0]
    return state


def speaker_encoder_state(drawer: Drawer, shapes: Shapes) -> dict[str, torch.Tensor]:
    """``campplus.onnx``: what follows a ReLU gets the gain that keeps the variance, what a gate of about a half weighs twice as much."""

    def rule(key: str, shape: Shape) -> Scale:
        if len(shape) == 1 or "shortcut" in key or ".dense." in key or "cam_layer.linear" in key.replace("linear_local", ""):
            return common_scale(key, shape)
        return fan_in_scale(shape, 2.0 if "linear_local" in key else math.sqrt(2.0))

    return drawer.state_dict("campplus.onnx", shapes, rule)


F0_HZ = 150.0  # mean of the random f0 predictor
F0_SPREAD_HZ = 30.0
RESIDUAL_GAIN = 0.4  # of the branches that a residual block adds
SOURCE_GAIN = 3.0  # source samples are small (0.1 per harmonic)
LOG_MAGNITUDE_GAIN = 0.25  # of the output layer's first half, which goes through an exponential


def vocoder_state(drawer: Drawer, shapes: Shapes, config: VocoderConfig) -> dict[str, torch.Tensor]:
    """``hift.pt``: a weight-normalised kernel is drawn as its direction; its magnitude carries the gain.

    The output layer is biased so that the audio is audible, falls off towards high frequencies and is not clipped.
    """

    def rule(key: str, shape: Shape) -> Scale:
        if key.endswith("original1"):
            return Scale(1.0)
        if key.endswith("original0"):
            gain = _kernel_norm(key, shapes, config)
            return Scale(0.05 * gain, mean=gain)
        if key == "f0_predictor.classifier.weight":
            return fan_in_scale(shape, gain=F0_SPREAD_HZ)
        if key == "f0_predictor.classifier.bias":
            return Scale(0.0, mean=F0_HZ)
        if key == "m_source.l_linear.weight":
            return Scale(1.0)
        if key == "m_source.l_linear.bias":
            return Scale(0.0)  # a constant source would drown the harmonics
        if key.startswith("source_downs.") and len(shape) > 1:
            return fan_in_scale(shape, gain=SOURCE_GAIN)
        return common_scale(key, shape)

    state = drawer.state_dict("hift.pt", shapes, rule)
    bins = config.istft_n_fft // 2 + 1
    state["conv_post.parametrizations.weight.original0"][:bins] *= LOG_MAGNITUDE_GAIN
    state["conv_post.bias"][:bins] += _log_magnitude_bias(bins)
    return state


def _kernel_norm(key: str, shapes: Shapes, config: VocoderConfig) -> float:
    """Norm over all dimensions but the first that keeps the variance of the activations."""
    module = key.split(".parametrizations")[0]
    parts = module.split(".")
    if parts[0] == "ups" and not isinstance(config, CausalVocoderConfig):  # [in, out, kernel]; an output sample gets kernel / rate taps
        channels_in, channels_out, _ = shapes[f"{module}.parametrizations.weight.original1"]
        return math.sqrt(config.upsample_rates[int(parts[1])] * channels_out / channels_in)
    return RESIDUAL_GAIN if "resblocks" in module else 1.0


def _log_magnitude_bias(bins: int) -> torch.Tensor:
    """Log of the mean spectrum: falling by about 4.3 dB per 1.5 kHz band.

    Bin 0 is as strong as bin 1: under a Hann window the two produce offsets of opposite sign.
    """
    return 1.1 - 0.5 * torch.arange(bins, dtype=torch.float32).clamp(min=1)
