"""Recordings are conditioned once for every door, in the orchestrator; their hashes are those of what was sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bistream.config import RuntimeConfig
from bistream.contract.voices import reference_hash
from bistream.errors import InvalidInputError
from bistream.sessions.request_checks import SessionStart, check_start
from bistream.sessions.voices import Voices
from bistream.types import FloatArray, IntArray, SpeakerFeatures
from bistream.voice.conditioning import condition_reference
from tests.sounds import speech_like
from tests.unit.sessions.fakes import WAIT_S, FakeVoicePort, start_request

CONFIG = RuntimeConfig()
SILENCE = np.zeros(16_000, np.float32)
RECORDING = np.concatenate([SILENCE, speech_like(), SILENCE])
WORDS = "Reference."


class ListeningPort(FakeVoicePort):
    """Keeps what it was asked to analyse."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenized: list[FloatArray] = []
        self.heard: list[FloatArray] = []

    def prompt_speech_tokens(self, reference_wav: FloatArray) -> IntArray:
        self.tokenized.append(reference_wav)
        return super().prompt_speech_tokens(reference_wav)

    def speaker_features(self, reference_wav: FloatArray) -> SpeakerFeatures:
        self.heard.append(reference_wav)
        return super().speaker_features(reference_wav)


def start(digest: str | None = None) -> SessionStart:
    return check_start(start_request(reference_wav=RECORDING, reference_text=WORDS, reference_hash=digest), CONFIG)


def test_both_models_hear_the_speech_alone_and_the_hash_is_that_of_what_was_sent() -> None:
    port = ListeningPort()
    voices = Voices(CONFIG, port)
    digest = reference_hash(RECORDING, WORDS)
    voice = voices.request(start(digest)).future.result(WAIT_S)
    for heard in (port.tokenized, port.heard):
        np.testing.assert_array_equal(heard[0], condition_reference(RECORDING, CONFIG))
    assert len(voice.speech_tokens) == len(port.heard[0]) // 640 < len(RECORDING) // 640
    by_hash = replace(start(), reference_wav=None, reference_hash=digest)
    assert voices.find(by_hash).voice is voice and len(port.heard) == 1
    voices.close(WAIT_S)


def test_a_source_keeps_its_samples_and_needs_speech() -> None:
    port = ListeningPort()
    voices = Voices(CONFIG, port)
    voices.request_source(replace(start(), source_wav=RECORDING)).future.result(WAIT_S)
    np.testing.assert_array_equal(port.tokenized[0], RECORDING)
    silent = voices.request_source(replace(start(), source_wav=SILENCE))
    with pytest.raises(InvalidInputError, match="The recording in source_wav has no speech"):
        silent.future.result(WAIT_S)
    voices.close(WAIT_S)
