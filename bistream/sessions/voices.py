"""The voice of a session: a named one, or made by the voice port, of the conditioned reference recording or of labels. Cached by content.

A request never blocks for an analysis: the session waits for its future, or abandons it when the session ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from bistream.config import RuntimeConfig
from bistream.contract.refusals import hash_differs, unknown_voice
from bistream.contract.voices import ListedVoice, reference_hash
from bistream.errors import BusyError
from bistream.sessions.named_voices import open_voices
from bistream.sessions.ports import VoicePort
from bistream.sessions.request_checks import SessionStart
from bistream.text2token.one_table.prompts import Labels
from bistream.types import FloatArray, IntArray, VoicePrompt
from bistream.voice.analyses import Analyses, Analysis
from bistream.voice.build import join_voice_prompt, voice_of_numbers
from bistream.voice.cache import VoiceCache
from bistream.voice.conditioning import check_source, condition_reference

logger = logging.getLogger(__name__)
Part = TypeVar("Part")


class Voices:
    """Shared by all sessions of an orchestrator; thread-safe."""

    def __init__(self, config: RuntimeConfig, port: VoicePort) -> None:
        self._port = port
        self._config = config
        self._named = open_voices(config)
        self._cache = VoiceCache(config.voice_cache_size)
        self._analyses = Analyses(config.max_voice_analyses)
        if config.voices_dir and not self._named.registry.speaker_ids():
            logger.info("no voice is registered in voices_dir %s; register one with bistream voices add", config.voices_dir)
        if config.default_speaker_id and config.default_speaker_id not in self._named:
            logger.warning("default_speaker_id %r is not registered; requests without a voice will fail", config.default_speaker_id)

    def listed(self) -> list[ListedVoice]:
        """Those with a name, the default first. Blocks while files are read; raises ``CheckpointError``."""
        return self._named.listed(self._config.default_speaker_id)

    def find(self, start: SessionStart) -> SessionStart:
        """With the voice, where the start has only its hash. Raises ``UnknownVoiceError``.

        Called before the session exists, so that a client that must send the recording is told at once and has taken no place.
        """
        if start.reference_hash is None or start.reference_wav is not None:
            return start
        voice = self._cache.get(start.reference_hash)  # 64 hexadecimal digits: never the key of a registered voice
        if voice is None:
            raise unknown_voice()
        return replace(start, voice=voice)

    def request(self, start: SessionStart) -> Analysis[VoicePrompt]:
        """Raises ``UnknownSpeakerError``, ``InvalidInputError`` for a hash of something else, and ``BusyError`` when too many recordings
        wait. The port's errors come from the future."""
        if start.voice is not None:
            return Analysis.known(start.voice)
        if start.speaker_id is not None:
            speaker_id = start.speaker_id
            return Analysis.known(self._cache.get_or_build(self._named.content_key(speaker_id), lambda: self._named.load(speaker_id)))
        if start.labels is not None:
            return self._of_labels(start.labels, start.options.seed)
        assert start.reference_wav is not None, "a checked start has a voice"
        waveform, transcript = start.reference_wav, start.reference_text
        key = reference_hash(waveform, transcript)
        if start.reference_hash not in (None, key):
            raise hash_differs()
        return self._made(key, lambda: self._analyse(waveform, transcript))

    def _of_labels(self, labels: Labels, seed: int) -> Analysis[VoicePrompt]:
        key = f"labels:{labels.gender}:{labels.pitch}:{labels.speaking_rate}:{seed}"
        return self._made(key, lambda: voice_of_numbers(self._port.speaker_of_labels(labels, seed)))

    def _made(self, key: str, make: Callable[[], VoicePrompt]) -> Analysis[VoicePrompt]:
        """key: of a recording as it was sent, or of labels."""
        voice = self._cache.get(key)
        if voice is not None:
            return Analysis.known(voice)

        def build() -> VoicePrompt:
            made = make()
            self._cache.put(key, made)
            return made

        return self._analyses.request(key, build)

    def request_source(self, start: SessionStart) -> Analysis[IntArray]:
        """Speech tokens int32 [T] of the recording to convert. Raises ``BusyError``; the port's errors come from the future."""
        source = start.source_wav
        assert source is not None, "a start of voice conversion"
        return self._analyses.request(f"source:{reference_hash(source, '')}", lambda: self._source_tokens(source))

    def abandon(self, request: Analysis[Any]) -> None:
        """The session has ended without it."""
        self._analyses.abandon(request)

    def close(self, timeout_s: float) -> None:
        """Wait for running analyses: they call the models, which a process that unloads must not do."""
        if not self._analyses.close(timeout_s):
            logger.error("the analysis of a recording does not end: a model does not answer")

    def _analyse(self, waveform: FloatArray, transcript: str) -> VoicePrompt:
        """Both models at the same time. What they compute they compute in their processes: this one has other sessions to serve."""
        waveform = condition_reference(waveform, self._config)
        with ThreadPoolExecutor(1, thread_name_prefix="bistream-voice-part") as pool:  # waits for it at its end, also after an error
            tokens = _submit(pool, self._port.prompt_speech_tokens, waveform)
            speaker = self._port.speaker_features(waveform)
        return join_voice_prompt(transcript, speaker.mel, tokens.result(), speaker.embedding)

    def _source_tokens(self, source: FloatArray) -> IntArray:
        check_source(source, self._config)
        return self._port.prompt_speech_tokens(source)


def _submit(pool: ThreadPoolExecutor, work: Callable[[FloatArray], Part], waveform: FloatArray) -> Future[Part]:
    try:
        return pool.submit(work, waveform)
    except RuntimeError as error:  # the system cannot create another thread
        raise BusyError("The server cannot create a thread for this recording; try again later.") from error
