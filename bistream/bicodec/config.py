"""Sizes of the codec: a frozen tree, read from ``BiCodec/config.yaml`` and ``config.yaml`` of a model directory.

Defaults are those of the release. What the yaml leaves out (``SpeakerSizes``, second part) is read from shapes of tensors (``shapes``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from bistream.checkpoints.reader import find_file
from bistream.errors import CheckpointError

CODEC_YAML, TOP_YAML = "BiCodec/config.yaml", "config.yaml"
_RESTORE = "restore the file from the released model."
_Sizes = TypeVar("_Sizes")


@dataclass(frozen=True)
class MelSizes:
    """Mel frames of the speaker encoder. Frequencies in Hz; the others in samples at ``sample_rate`` Hz."""

    sample_rate: int = 16_000
    fft: int = 1024
    window: int = 640
    hop: int = 320
    low_hz: float = 10.0
    high_hz: float | None = None  # None: up to half the sample rate
    bins: int = 128


@dataclass(frozen=True)
class FrameNetSizes:
    """Encoder, prenet or postnet. ratios: frames in for one frame out of each resampling block (of the encoder), or out for one in."""

    input_size: int = 1024
    width: int = 384
    intermediate: int = 2048
    layers: int = 12
    output_size: int = 1024
    ratios: tuple[int, ...] = (1, 1)
    tanh_at_end: bool = False


@dataclass(frozen=True)
class GeneratorSizes:
    """kernels: of the transposed convolutions, whose strides are ``rates``."""

    input_size: int = 1024
    channels: int = 1536
    rates: tuple[int, ...] = (8, 5, 4, 2)
    kernels: tuple[int, ...] = (16, 11, 8, 4)


@dataclass(frozen=True)
class QuantizerSizes:
    """Of the semantic tokens."""

    input_size: int = 1024
    codes: int = 8192
    code_size: int = 8


@dataclass(frozen=True)
class SpeakerSizes:
    """Speaker encoder. tokens: global tokens of a voice; levels: of each dimension of such a token."""

    mel_bins: int = 128
    output_size: int = 1024
    latent_size: int = 128
    tokens: int = 32
    levels: tuple[int, ...] = (4, 4, 4, 4, 4, 4)
    # not in the yaml
    channels: int = 512
    pooled_channels: int = 1536
    scale: int = 8  # slices of a Res2Net block
    gate_size: int = 128
    pooling_size: int = 128
    attention_layers: int = 2
    attention_size: int = 512  # of all heads
    feed_forward_size: int = 341

    @property
    def codes(self) -> int:
        """Values of a global token."""
        return math.prod(self.levels)


@dataclass(frozen=True)
class RecordingSizes:
    """How a recording is prepared (``config.yaml``). reference_s: of the clip whose mel the speaker encoder hears."""

    sample_rate: int = 16_000
    samples_per_token: int = 320
    reference_s: float = 6.0
    normalizes_volume: bool = True


@dataclass(frozen=True)
class CodecConfig:
    """Everything."""

    recording: RecordingSizes = RecordingSizes()
    mel: MelSizes = MelSizes()
    encoder: FrameNetSizes = FrameNetSizes()
    quantizer: QuantizerSizes = QuantizerSizes()
    speaker: SpeakerSizes = SpeakerSizes()
    prenet: FrameNetSizes = FrameNetSizes()
    generator: GeneratorSizes = GeneratorSizes()
    postnet: FrameNetSizes = FrameNetSizes(layers=6)

    @property
    def samples_per_token(self) -> int:
        return math.prod(self.prenet.ratios) * math.prod(self.generator.rates)


def read_config(model_dir: str | Path) -> CodecConfig:
    """Raises ``CheckpointError`` with one sentence: the file, and the key that is missing or has no usable value."""
    top = _Section(TOP_YAML, "", _read(model_dir, TOP_YAML))
    codec = _Section(CODEC_YAML, "", _read(model_dir, CODEC_YAML)).section("audio_tokenizer")
    config = CodecConfig(
        recording=RecordingSizes(
            sample_rate=top.integer("sample_rate"),
            samples_per_token=top.integer("latent_hop_length"),
            reference_s=top.number("ref_segment_duration"),
            normalizes_volume=top.flag("volume_normalize", False),
        ),
        mel=_mel_sizes(codec.section("mel_params")),
        encoder=_frame_net(codec.section("encoder")),
        quantizer=_quantizer(codec.section("quantizer")),
        speaker=_speaker(codec.section("speaker_encoder")),
        prenet=_frame_net(codec.section("prenet")),
        generator=_generator(codec.section("decoder")),
        postnet=_frame_net(codec.section("postnet")),
    )
    _check_fit(config, codec.section("prenet").integer("condition_dim"))
    return config


class _Section:
    """A mapping of a yaml file that says where a value is missing."""

    def __init__(self, file: str, name: str, values: Any) -> None:
        self._file, self._name, self._values = file, name, values
        if not isinstance(values, Mapping):
            raise CheckpointError(f"{file} has no section {name}; {_RESTORE}" if name else f"{file} holds no keys; {_RESTORE}")

    def section(self, key: str) -> _Section:
        return _Section(self._file, self._path(key), self._values.get(key))

    def integer(self, key: str) -> int:
        return _whole(self, key, self._value(key))

    def number(self, key: str) -> float:
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise self.unusable(key, value, "a number")
        return float(value)

    def integers(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        if default is not None and key not in self._values:
            return default
        values = self._value(key)
        if not isinstance(values, list) or not values:
            raise self.unusable(key, values, "a list of whole numbers")
        return tuple(_whole(self, key, value) for value in values)

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.unusable(key, value, "true or false")
        return value

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def unusable(self, key: str, value: Any, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self._file} has {self._path(key)} {value!r}, and {wanted} is needed; {_RESTORE}")

    def _value(self, key: str) -> Any:
        if key not in self._values:
            raise CheckpointError(f"{self._file} lacks {self._path(key)}; {_RESTORE}")
        return self._values[key]

    def _path(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key


def _whole(section: _Section, key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise section.unusable(key, value, "a whole number above 0")
    return value


def _mel_sizes(section: _Section) -> MelSizes:
    sizes = MelSizes(
        sample_rate=section.integer("sample_rate"),
        fft=section.integer("n_fft"),
        window=section.integer("win_length"),
        hop=section.integer("hop_length"),
        low_hz=section.number("mel_fmin"),
        high_hz=section.number("mel_fmax") if section.has("mel_fmax") else None,
        bins=section.integer("num_mels"),
    )
    if sizes.window > sizes.fft:
        raise section.unusable("win_length", sizes.window, f"at most n_fft, which is {sizes.fft},")
    return sizes


def _frame_net(section: _Section) -> FrameNetSizes:
    return FrameNetSizes(
        input_size=section.integer("input_channels"),
        width=section.integer("vocos_dim"),
        intermediate=section.integer("vocos_intermediate_dim"),
        layers=section.integer("vocos_num_layers"),
        output_size=section.integer("out_channels"),
        ratios=section.integers("sample_ratios", (1, 1)),
        tanh_at_end=section.flag("use_tanh_at_final", False),
    )


def _quantizer(section: _Section) -> QuantizerSizes:
    return QuantizerSizes(
        input_size=section.integer("input_dim"), codes=section.integer("codebook_size"), code_size=section.integer("codebook_dim")
    )


def _speaker(section: _Section) -> SpeakerSizes:
    quantizers, levels = section.integer("fsq_num_quantizers"), section.integers("fsq_levels")
    if quantizers != 1:
        raise section.unusable("fsq_num_quantizers", quantizers, "1")
    if min(levels) < 2:
        raise section.unusable("fsq_levels", list(levels), "two levels or more in each dimension")
    return SpeakerSizes(
        mel_bins=section.integer("input_dim"),
        output_size=section.integer("out_dim"),
        latent_size=section.integer("latent_dim"),
        tokens=section.integer("token_num"),
        levels=levels,
    )


def _generator(section: _Section) -> GeneratorSizes:
    rates, kernels = section.integers("rates"), section.integers("kernel_sizes")
    if len(rates) != len(kernels) or any(kernel < rate or (kernel - rate) % 2 for rate, kernel in zip(rates, kernels, strict=False)):
        raise section.unusable("kernel_sizes", list(kernels), f"for each of the rates {list(rates)} that rate plus an even number")
    channels = section.integer("channels")
    if channels % 2 ** len(rates):
        raise section.unusable("channels", channels, f"a multiple of {2 ** len(rates)}")
    return GeneratorSizes(section.integer("input_channel"), channels, rates, kernels)


def _check_fit(config: CodecConfig, condition_size: int) -> None:
    """That the networks can be joined, which no single section says."""
    token_samples = config.recording.samples_per_token
    pairs = {
        "encoder.out_channels and quantizer.input_dim": (config.encoder.output_size, config.quantizer.input_size),
        "prenet.input_channels and quantizer.input_dim": (config.prenet.input_size, config.quantizer.input_size),
        "prenet.out_channels and decoder.input_channel": (config.prenet.output_size, config.generator.input_size),
        "speaker_encoder.out_dim and decoder.input_channel": (config.speaker.output_size, config.generator.input_size),
        "speaker_encoder.out_dim and prenet.condition_dim": (config.speaker.output_size, condition_size),
        "mel_params.num_mels and speaker_encoder.input_dim": (config.mel.bins, config.speaker.mel_bins),
        f"the samples of a token and latent_hop_length of {TOP_YAML}": (config.samples_per_token, token_samples),
        f"mel_params.sample_rate and sample_rate of {TOP_YAML}": (config.mel.sample_rate, config.recording.sample_rate),
    }
    for names, (first, second) in pairs.items():
        if first != second:
            raise CheckpointError(f"{CODEC_YAML}: {names} are {first} and {second}, and must be equal; {_RESTORE}")


def _read(model_dir: str | Path, name: str) -> Any:
    path = find_file(model_dir, name)
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        raise CheckpointError(f"{name} could not be read ({' '.join(str(error).split())[:200]}); {_RESTORE}") from error
