"""Recordings to voices with a codec that knows a speaker by global tokens (``bicodec``). Loads torch.

The two answers are those of the other families: speech tokens (here the semantic ones), and what a speaker is known by: his global tokens,
as numbers of a float32 vector, which holds them exactly. There is no mel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bistream.bicodec.voice import VoiceReader, load_reader
from bistream.config import RuntimeConfig
from bistream.gpu.device import open_device, resolve_device
from bistream.processes.start_phases import phase
from bistream.types import FloatArray, IntArray, SpeakerFeatures

NO_MEL = np.zeros((0, 0), np.float32)


def open_reader(config: RuntimeConfig, before_cpu: Callable[[], None], global_tokens_alone: bool = False) -> VoiceReader:
    """before_cpu: called before it loads onto the CPU. The last: as for ``load_reader``. Raises ``CheckpointError`` and ``ConfigError``."""
    device = resolve_device(config.device)
    if device.type == "cpu":
        before_cpu()
    open_device(device)
    with phase("codec: weights read"):
        return load_reader(config.model_dir, device, global_tokens_alone=global_tokens_alone)


class CodecVoices:
    """``factory.TokensOfRecordings`` and ``SpeakersOfRecordings``. One recording in a call of the network, which hears padding."""

    def __init__(self, reader: VoiceReader) -> None:
        self._reader = reader

    def tokens_of(self, waveforms: Sequence[FloatArray]) -> list[IntArray]:
        return [self._reader.semantic_tokens(self._reader.prepared(waveform)) for waveform in waveforms]

    def features_of(self, waveforms: Sequence[FloatArray]) -> list[SpeakerFeatures]:
        tokens = [self._reader.global_tokens(self._reader.prepared(waveform)) for waveform in waveforms]
        return [SpeakerFeatures(one.astype(np.float32), NO_MEL) for one in tokens]
