"""Voices that are asked for by name: those registered in ``voices_dir``, then the presets of the checkpoint (``spk2info.pt``).

The presets are read when the first name is asked for that is not registered. Thread-safe.
"""

from __future__ import annotations

import functools
import logging
import threading
from pathlib import Path

from bistream.config import RuntimeConfig
from bistream.contract.voices import PRESET, REGISTERED, ListedVoice
from bistream.errors import UnknownSpeakerError
from bistream.text.tokenizer import TextTokenizer
from bistream.types import VoicePrompt
from bistream.voice.made_with import open_registry
from bistream.voice.registry import VoiceRegistry
from bistream.voice.spk2info import DecodeText, read_presets

logger = logging.getLogger(__name__)

PRESETS_FILE = "spk2info.pt"
MAX_NAMES_SHOWN = 8


class NamedVoices:
    """A registered voice comes before a preset of the same name."""

    def __init__(self, registry: VoiceRegistry, model_dir: str | Path) -> None:
        """model_dir: empty for none."""
        self.registry = registry
        self._model_dir = model_dir
        self._lock = threading.Lock()
        self._presets: dict[str, VoicePrompt] | None = None  # until it is asked for

    def preset_ids(self) -> list[str]:
        """In the order of the file. Raises ``CheckpointError`` for one that cannot be read."""
        return list(self._read_presets())

    def listed(self, default: str) -> list[ListedVoice]:
        """The default first, then the presets, then those registered. default: a name, perhaps of no voice. Raises ``CheckpointError``."""
        registered = self.registry.speaker_ids()
        kinds = {name: PRESET for name in self.preset_ids() if name not in registered} | dict.fromkeys(registered, REGISTERED)
        voices = [ListedVoice(name, kind, name == default) for name, kind in kinds.items()]
        return sorted(voices, key=lambda voice: not voice.is_default)

    def __contains__(self, speaker_id: str) -> bool:
        return speaker_id in self.registry.speaker_ids() or speaker_id in self._read_presets()

    def content_key(self, speaker_id: str) -> str:
        """Cache key that changes when the voice is registered again. Raises as ``load`` does."""
        try:
            return self.registry.content_key(speaker_id)
        except UnknownSpeakerError:
            self._preset(speaker_id)
            return f"preset:{speaker_id}"

    def load(self, speaker_id: str) -> VoicePrompt:
        """Raises ``UnknownSpeakerError``, and ``CheckpointError`` where files are damaged or the voice belongs to another model."""
        try:
            return self.registry.load(speaker_id)
        except UnknownSpeakerError:
            return self._preset(speaker_id)

    def _preset(self, speaker_id: str) -> VoicePrompt:
        presets = self._read_presets()
        if speaker_id not in presets:
            shown = ", ".join(list(presets)[:MAX_NAMES_SHOWN]) + (", ..." if len(presets) > MAX_NAMES_SHOWN else "")
            others = f" (the model's own are {shown})" if presets else ""
            raise UnknownSpeakerError(f"No voice is registered as {speaker_id[:64]!r}; register it or use another speaker_id{others}.")
        return presets[speaker_id]

    def _read_presets(self) -> dict[str, VoicePrompt]:
        with self._lock:
            if self._presets is None:
                path = Path(self._model_dir) / PRESETS_FILE
                exists = bool(self._model_dir) and path.is_file()
                self._presets = read_presets(path, self._text_decoder()) if exists else {}
                if self._presets:
                    logger.info("%s has the voices %s", PRESETS_FILE, ", ".join(self._presets))
            return self._presets

    def _text_decoder(self) -> DecodeText:
        """Reads the tokenizer once, where an entry needs it."""

        @functools.cache
        def tokenizer() -> TextTokenizer:
            return TextTokenizer.from_model_dir(self._model_dir)

        return lambda ids: tokenizer().decode(ids)


def open_voices(config: RuntimeConfig) -> NamedVoices:
    """The voices that a server of this configuration may use. Raises ``CheckpointError``."""
    return NamedVoices(open_registry(config), config.model_dir)
