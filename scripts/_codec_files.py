"""The codec's part of a model directory with random weights: BiCodec, wav2vec2 and their configuration, as the released files are.

Sizes go in (``CodecFiles``), files come out; ``bistream.bicodec`` reads them back. The weights keep activations near one, so that audio is
neither silent nor clipped and tokens of recordings vary. Called by ``make_checkpoint.py``.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file

from bistream.bicodec import wav2vec2_weights
from bistream.bicodec.config import CODEC_YAML, TOP_YAML, CodecConfig, FrameNetSizes, GeneratorSizes, QuantizerSizes, SpeakerSizes
from bistream.bicodec.shapes import DIRECTION, FILE_NAME, GAIN, expected_shapes
from bistream.bicodec.wav2vec2 import Wav2Vec2Config
from scripts._random_weights import Drawer, Scale, Shape, Shapes, common_scale, fan_in_scale

PREPROCESSOR_NAME = f"{wav2vec2_weights.FOLDER}/preprocessor_config.json"


@dataclass(frozen=True)
class CodebookSizes:
    """Of wav2vec2's training: in the file, and read by nothing."""

    groups: int = 2
    vectors: int = 320
    size: int = 768


@dataclass(frozen=True)
class CodecFiles:
    """Sizes of everything that is written."""

    codec: CodecConfig = CodecConfig()
    wav2vec2: Wav2Vec2Config = Wav2Vec2Config()
    codebook: CodebookSizes = CodebookSizes()


def _tiny() -> CodecFiles:
    features, vectors, voice = 32, 24, 40
    encoder = FrameNetSizes(features, 32, 64, 2, vectors)
    codec = CodecConfig(
        encoder=encoder,
        quantizer=QuantizerSizes(vectors, codes=512),
        speaker=SpeakerSizes(
            output_size=voice,
            latent_size=16,
            levels=(4, 4, 4, 4),
            channels=32,
            pooled_channels=48,
            gate_size=16,
            pooling_size=16,
            attention_size=64,
            feed_forward_size=42,
        ),
        prenet=FrameNetSizes(vectors, 32, 64, 2, voice),
        generator=GeneratorSizes(voice, 32),
        postnet=FrameNetSizes(voice, 32, 64, 1, features),
    )
    wav2vec2 = Wav2Vec2Config(features, 4, 64, 17, conv_widths=(16,) * 7)
    return CodecFiles(codec, wav2vec2, CodebookSizes(2, 4, 16))


TINY, FULL = _tiny(), CodecFiles()


def writers(size: CodecFiles, drawer: Drawer) -> dict[str, Callable[[Path], object]]:
    """What writes each file, by its name in the model directory."""
    return {
        TOP_YAML: _text(lambda: _yaml(_top(size.codec))),
        CODEC_YAML: _text(lambda: _yaml({"audio_tokenizer": _codec(size.codec)})),
        FILE_NAME: lambda path: save_file(codec_state(drawer, size.codec), path),
        wav2vec2_weights.CONFIG_NAME: _text(lambda: _json(_wav2vec2(size))),
        PREPROCESSOR_NAME: _text(lambda: _json(_preprocessor(size.codec))),
        wav2vec2_weights.FILE_NAME: lambda path: torch.save(OrderedDict(wav2vec2_state(drawer, size)), path),
    }


RESIDUAL_GAIN = 0.4  # of the branches that a residual adds
RELU_MEAN, RELU_VARIANCE = 0.4, 0.34  # of the positive part of a normal number
WAVE_GAIN = 0.1  # of the last convolution: samples before the tanh have about this deviation


def codec_state(drawer: Drawer, config: CodecConfig) -> dict[str, torch.Tensor]:
    """``BiCodec/model.safetensors``: 840 tensors at full size. A weight-normalised kernel is drawn as its direction, its gain keeps the
    variance."""
    shapes = expected_shapes(config)

    def rule(key: str, shape: Shape) -> Scale:
        name = key.rpartition(".")[2]
        if name == GAIN:
            gain = _kernel_norm(key, shapes, config.generator)
            return Scale(0.05 * gain, mean=gain)
        return _named_scale(key, name) or common_scale(key, shape)

    return drawer.state_dict(FILE_NAME, shapes, rule)


def _named_scale(key: str, name: str) -> Scale | None:
    """For what the common rule does not know."""
    if name in _FIXED:
        return _FIXED[name]
    if name == "gamma":
        return Scale(0.1, mean=1.0) if "perceiver" in key else Scale(0.05, mean=RESIDUAL_GAIN)
    if key.endswith(("norm.scale.bias", "norm.scale.weight", "norm.shift.weight")):
        return Scale(0.1, mean=1.0) if name == "bias" else None
    return None


_FIXED = {
    DIRECTION: Scale(1.0),
    "alpha": Scale(0.1, mean=1.0),
    "running_mean": Scale(0.05, mean=RELU_MEAN),
    "running_var": Scale(0.02, mean=RELU_VARIANCE),
    "num_batches_tracked": Scale(0.0, mean=1000.0),
    "cluster_size": Scale(0.0, mean=1.0),
    "latents": Scale(1.0),
}


def _kernel_norm(key: str, shapes: Shapes, sizes: GeneratorSizes) -> float:
    """Norm over all axes but the first that keeps the variance of what passes."""
    parts = key.split(".")
    if parts[0] == "decoder" and len(parts) == 6:  # decoder.model.<stage>.block.1: [in, out, kernel]; a sample gets kernel / rate taps
        channels_in, channels_out, _ = shapes[key.replace(GAIN, DIRECTION)]
        return math.sqrt(sizes.rates[int(parts[2]) - 1] * channels_out / channels_in)
    if parts[0] == "decoder" and parts[-2] == "3":
        return RESIDUAL_GAIN
    return WAVE_GAIN if parts[:3] == ["decoder", "model", str(len(sizes.rates) + 2)] else 1.0


def wav2vec2_shapes(size: CodecFiles) -> dict[str, Shape]:
    """Every key of ``pytorch_model.bin`` as a model for pre-training is published: 429 at full size."""
    config, codebook = size.wav2vec2, size.codebook
    prefix, vectors = wav2vec2_weights.PREFIX, codebook.groups * codebook.vectors
    shapes: dict[str, Shape] = {f"{prefix}masked_spec_embed": (config.width,)}
    shapes |= {f"{prefix}{key}": shape for key, shape in wav2vec2_weights.expected_shapes(config, config.layers).items()}
    shapes |= {f"{prefix}encoder.layer_norm.weight": (config.width,), f"{prefix}encoder.layer_norm.bias": (config.width,)}
    shapes["quantizer.codevectors"] = (1, vectors, codebook.size // codebook.groups)
    for name, weight in {
        "quantizer.weight_proj": (vectors, config.conv_widths[-1]),
        "project_hid": (codebook.size, config.width),
        "project_q": (codebook.size, codebook.size),
    }.items():
        shapes |= {f"{name}.weight": weight, f"{name}.bias": weight[:1]}
    return shapes


def wav2vec2_state(drawer: Drawer, size: CodecFiles) -> dict[str, torch.Tensor]:
    """``pytorch_model.bin``."""
    config = size.wav2vec2

    def rule(key: str, shape: Shape) -> Scale:
        if key.endswith(GAIN):  # one for each tap
            gain = math.sqrt(config.width / config.position_kernel)
            return Scale(0.05 * gain, mean=gain)
        if key.endswith(DIRECTION):
            return Scale(1.0)
        if key.endswith(("out_proj.weight", "output_dense.weight")):
            return fan_in_scale(shape, gain=RESIDUAL_GAIN)
        return common_scale(key, shape)

    return drawer.state_dict(wav2vec2_weights.FILE_NAME, wav2vec2_shapes(size), rule)


def _text(content: Callable[[], str]) -> Callable[[Path], object]:
    return lambda path: path.write_text(content(), encoding="utf-8")


def _yaml(values: dict[str, Any]) -> str:
    return "# Random weights made by scripts/make_checkpoint.py\n" + yaml.safe_dump(values, sort_keys=False)


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"


def _top(config: CodecConfig) -> dict[str, Any]:
    sizes = config.recording
    return {
        "highpass_cutoff_freq": 40,
        "sample_rate": sizes.sample_rate,
        "segment_duration": 2.4,
        "max_val_duration": 12,
        "latent_hop_length": sizes.samples_per_token,
        "ref_segment_duration": sizes.reference_s,
        "volume_normalize": sizes.normalizes_volume,
    }


def _codec(config: CodecConfig) -> dict[str, Any]:
    mel, quantizer, speaker, generator = config.mel, config.quantizer, config.speaker, config.generator
    return {
        "mel_params": {
            "sample_rate": mel.sample_rate,
            "n_fft": mel.fft,
            "win_length": mel.window,
            "hop_length": mel.hop,
            "mel_fmin": mel.low_hz,
            "mel_fmax": mel.high_hz,
            "num_mels": mel.bins,
        },
        "encoder": _frame_net(config.encoder),
        "decoder": {
            "input_channel": generator.input_size,
            "channels": generator.channels,
            "rates": list(generator.rates),
            "kernel_sizes": list(generator.kernels),
        },
        "quantizer": {
            "input_dim": quantizer.input_size,
            "codebook_size": quantizer.codes,
            "codebook_dim": quantizer.code_size,
            "commitment": 0.25,
            "codebook_loss_weight": 2.0,
            "use_l2_normlize": True,
            "threshold_ema_dead_code": 0.2,
        },
        "speaker_encoder": {
            "input_dim": speaker.mel_bins,
            "out_dim": speaker.output_size,
            "latent_dim": speaker.latent_size,
            "token_num": speaker.tokens,
            "fsq_levels": list(speaker.levels),
            "fsq_num_quantizers": 1,
        },
        "prenet": {**_frame_net(config.prenet), "condition_dim": speaker.output_size, "use_tanh_at_final": config.prenet.tanh_at_end},
        "postnet": {**_frame_net(config.postnet), "use_tanh_at_final": config.postnet.tanh_at_end},
    }


def _frame_net(sizes: FrameNetSizes) -> dict[str, Any]:
    return {
        "input_channels": sizes.input_size,
        "vocos_dim": sizes.width,
        "vocos_intermediate_dim": sizes.intermediate,
        "vocos_num_layers": sizes.layers,
        "out_channels": sizes.output_size,
        "sample_ratios": list(sizes.ratios),
    }


def _wav2vec2(size: CodecFiles) -> dict[str, Any]:
    config, codebook = size.wav2vec2, size.codebook
    return {
        "architectures": ["Wav2Vec2ForPreTraining"],
        "model_type": "wav2vec2",
        "do_stable_layer_norm": True,
        "feat_extract_norm": "layer",
        "feat_extract_activation": "gelu",
        "hidden_act": "gelu",
        "hidden_size": config.width,
        "num_attention_heads": config.heads,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_feat_extract_layers": len(config.conv_widths),
        "conv_dim": list(config.conv_widths),
        "conv_kernel": list(config.conv_kernels),
        "conv_stride": list(config.conv_strides),
        "conv_bias": config.conv_bias,
        "num_conv_pos_embeddings": config.position_kernel,
        "num_conv_pos_embedding_groups": config.position_groups,
        "layer_norm_eps": config.norm_eps,
        "vocab_size": 32,
        "num_codevector_groups": codebook.groups,
        "num_codevectors_per_group": codebook.vectors,
        "codevector_dim": codebook.size,
        "proj_codevector_dim": codebook.size,
    }


def _preprocessor(config: CodecConfig) -> dict[str, Any]:
    return {
        "do_normalize": True,
        "feature_extractor_type": "Wav2Vec2FeatureExtractor",
        "feature_size": 1,
        "padding_side": "right",
        "padding_value": 0,
        "return_attention_mask": True,
        "sampling_rate": config.recording.sample_rate,
    }
