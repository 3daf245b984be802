"""Chooses the networks that make a voice of a recording, by the family of the model directory. Importing it loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from bistream.checkpoints.files import family_of
from bistream.config import RuntimeConfig
from bistream.types import FloatArray, IntArray, SpeakerFeatures


class TokensOfRecordings(Protocol):
    """Thread-safe."""

    def tokens_of(self, waveforms: Sequence[FloatArray]) -> list[IntArray]:
        """float32 [N] each, 16 kHz -> int32 [P] each, raw codes. Raises ``InvalidInputError`` for too short a recording."""


class SpeakersOfRecordings(Protocol):
    """Thread-safe."""

    def features_of(self, waveforms: Sequence[FloatArray]) -> list[SpeakerFeatures]:
        """float32 [N] each, 16 kHz -> what a speaker is known by. Raises ``InvalidInputError`` for too short a recording."""


def load_tokenizer(config: RuntimeConfig, before_cpu: Callable[[], None] = lambda: None) -> TokensOfRecordings:
    """before_cpu: called before the first computation if that is on the CPU. Raises ``CheckpointError`` and ``ConfigError``."""
    if family_of(config.model_dir).has_codec:
        from bistream.voice.codec_voices import CodecVoices, open_reader  # noqa: PLC0415  (loads torch)

        return CodecVoices(open_reader(config, before_cpu))
    from bistream.voice.speech_tokenizer import SpeechTokenizer  # noqa: PLC0415

    return SpeechTokenizer.from_config(config, before_cpu)


def load_speakers(config: RuntimeConfig, before_cpu: Callable[[], None] = lambda: None) -> SpeakersOfRecordings:
    """As ``load_tokenizer``."""
    if family_of(config.model_dir).has_codec:
        from bistream.voice.codec_voices import CodecVoices, open_reader  # noqa: PLC0415  (loads torch)

        return CodecVoices(open_reader(config, before_cpu, global_tokens_alone=True))
    from bistream.voice.speaker_encoder import SpeakerEncoder  # noqa: PLC0415

    return SpeakerEncoder.from_config(config, before_cpu)
