"""The networks that make a voice, as files of the model directory, and the fingerprint of voices made with them. Loads no network."""

from __future__ import annotations

from pathlib import Path

from bistream.checkpoints.files import family_of
from bistream.checkpoints.reader import find_file
from bistream.config import RuntimeConfig
from bistream.store.fingerprint import Fingerprint, file_hash
from bistream.voice.registry import VoiceRegistry

SPEAKER_ENCODER_FILE = "campplus.onnx"


def voice_fingerprint(model_dir: str | Path) -> Fingerprint:
    """Of the voices that this model directory makes and can speak. Raises ``CheckpointError`` for a missing file.

    Tokens mean nothing to a model with another speech tokenizer, and an embedding of another speaker encoder is another voice; the
    language model, flow and vocoder may be other ones.
    """
    return Fingerprint({name: file_hash(find_file(model_dir, name)) for name in family_of(model_dir).voice_files})


def open_registry(config: RuntimeConfig) -> VoiceRegistry:
    """The voices that a server of this configuration may use. Raises ``CheckpointError``."""
    made_with = voice_fingerprint(config.model_dir) if config.voices_dir and config.model_dir else None
    return VoiceRegistry(config.voices_dir, made_with)
