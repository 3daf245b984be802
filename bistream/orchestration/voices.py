"""The voice of a session: a registered one, or made from the reference recording by the voice port. Cached by content."""

from __future__ import annotations

import logging

from bistream.config import RuntimeConfig
from bistream.orchestration.admission import SessionStart
from bistream.orchestration.ports import VoicePort
from bistream.types import VoicePrompt
from bistream.voice.build import build_voice_prompt, reference_key
from bistream.voice.cache import VoiceCache
from bistream.voice.registry import VoiceRegistry

logger = logging.getLogger(__name__)


class Voices:
    """Shared by all sessions of an orchestrator; thread-safe."""

    def __init__(self, config: RuntimeConfig, port: VoicePort) -> None:
        self._port = port
        self._registry = VoiceRegistry(config.voices_dir)
        self._cache = VoiceCache(config.voice_cache_size)
        known = self._registry.speaker_ids()
        if config.voices_dir and not known:
            logger.warning("no voice is registered in voices_dir %s; register one with scripts/register_voice.py", config.voices_dir)
        if config.default_speaker_id and config.default_speaker_id not in known:
            logger.warning("default_speaker_id %r is not registered; requests without a voice will fail", config.default_speaker_id)

    def voice_of(self, start: SessionStart) -> VoicePrompt:
        """Blocks while the recording is analysed. Raises ``UnknownSpeakerError`` and the port's errors."""
        if start.speaker_id is not None:
            speaker_id = start.speaker_id
            return self._cache.get_or_build(self._registry.content_key(speaker_id), lambda: self._registry.load(speaker_id))
        assert start.reference_wav is not None, "a checked start has a voice"
        waveform, transcript = start.reference_wav, start.reference_text
        return self._cache.get_or_build(
            reference_key(waveform, transcript),
            lambda: build_voice_prompt(
                waveform, transcript, self._port.prompt_speech_tokens(waveform), self._port.speaker_embedding(waveform)
            ),
        )
