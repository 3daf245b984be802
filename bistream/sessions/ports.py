"""Interfaces of the orchestrator: the models it uses, the requests it receives, the senders it answers through.

``local.py`` implements the ports in one process, ``transport/sibling_ports.py`` in a server, tests with fakes. Nothing here computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bistream.errors import BistreamError
from bistream.text2token.one_table.prompts import Labels
from bistream.text2token.service import LanguageModelStart
from bistream.token2wav.load_report import LoadReport
from bistream.token2wav.service import Token2WavHop
from bistream.types import (
    AudioChunk,
    AudioOptions,
    FloatArray,
    GenerationOptions,
    IntArray,
    SpeakerFeatures,
    SpeechTokens,
    TokenDemand,
    VoicePrompt,
)


class VoicePort(Protocol):
    """What makes voices: the two networks that analyse a reference recording, and the language model. All block and raise
    ``BistreamError``."""

    def prompt_speech_tokens(self, reference_wav: FloatArray) -> IntArray:
        """float32 [N] at 16 kHz -> int32 [P], raw codes, 25 per second."""

    def speaker_features(self, reference_wav: FloatArray) -> SpeakerFeatures:
        """float32 [N] at 16 kHz -> what flow and vocoder know the speaker by."""

    def speaker_of_labels(self, labels: Labels, seed: int) -> IntArray:
        """A voice that the language model makes, int32 (``one_table.prompts.SpeakerTokens.numbers``)."""


class LanguageModelPort(Protocol):
    """Called from the event loop. Calls reach the model in the order in which they are made: nothing overtakes the start of its session."""

    async def start(self, start: LanguageModelStart) -> None:
        """Start a session. Raises ``BistreamError``; there is no session then."""

    async def take(self, session_id: str, demand: TokenDemand) -> SpeechTokens:
        """The speech tokens that came since the last call, at least one or the ``finish_reason``. One call at a time for each session.

        A port may wait until there are about as many as ``demand`` says. Raises ``BistreamError`` once the session is gone. A cancelled
        one ends with ``FinishReason.CANCELLED`` or ``CancelledError``.
        """

    async def append(self, session_id: str, text: bytes, is_end: bool) -> None:
        """Send more text; empty text without ``is_end`` renews the lease. Raises ``UnknownSessionError`` once the session has ended."""

    async def cancel(self, session_id: str) -> None:
        """Free everything the session holds. An unknown session is not an error."""


class Token2WavPort(Protocol):
    """Called from the event loop; calls reach the model in order, as above."""

    async def hop(self, hop: Token2WavHop) -> FloatArray:
        """The next waveform of a session, float32 [N]; after ``finalize`` it is gone. Raises ``BistreamError``."""

    async def synthesize(
        self, token_ids: Sequence[int], prompt: VoicePrompt, audio: AudioOptions, speed: float, session_id: str
    ) -> FloatArray:
        """A whole utterance at once, with full attention. Lasts until a ``cancel`` at most; raises ``BistreamError``."""

    async def cancel(self, session_id: str) -> None:
        """Free everything the session holds. An unknown session is not an error."""

    def report(self) -> LoadReport | None:
        """What is known of its load. Returns at once; None: nothing yet."""


class AudioSender(Protocol):
    """Answers one request. The orchestrator calls ``finish`` exactly once and sends nothing after it."""

    async def send(self, chunk: AudioChunk) -> None:
        """Returns when the server has taken the chunk, and never raises; a chunk for a closed stream is dropped."""

    def report(self, heard: AudioChunk) -> None:
        """The answer to a cancel, before ``finish``: what was heard of the text; without audio. Returns at once."""

    def finish(self, error: BistreamError | None) -> None:
        """After what is being sent: the empty final response, or the error and then the final response. Returns at once."""

    def is_cancelled(self) -> bool:
        """Whether the client's stream is gone. May block; called from any thread, also after ``finish``."""


@dataclass(frozen=True)
class Ports:
    """The models of one pipeline."""

    voice: VoicePort
    language_model: LanguageModelPort
    token2wav: Token2WavPort


@dataclass(frozen=True)
class SessionKey:
    """The same id with another secret is another session."""

    session_id: str
    secret: str | None = None


@dataclass(frozen=True)
class BistreamRequest:
    """One request to ``cosyvoice2_bistream``: the inputs of its contract (``contract/fields.py``), and what comes another way.

    target_text: UTF-8, may be cut anywhere. reference_wav, source_wav: float32 [N], as received (padding included).
    is_offline: render the whole utterance at once with full attention (``cosyvoice2`` without streaming). Only with the whole text in this
    request. speed: None in a later request: as before.
    session_secret: makes the session unknown to requests that do not carry the same.
    """

    target_text: bytes | None = None
    reference_wav: FloatArray | None = None
    reference_wav_len: int | None = None
    reference_text: str | None = None
    reference_hash: str | None = None
    speaker_id: str | None = None
    gender: str | None = None
    pitch: str | None = None
    speaking_rate: str | None = None
    session_id: str | None = None
    is_start: bool = True
    is_end: bool = True
    is_cancel: bool = False
    speed: float | None = None
    is_cross_lingual: bool = False
    is_marked: bool = False
    source_wav: FloatArray | None = None
    source_wav_len: int | None = None
    options: GenerationOptions = GenerationOptions()
    is_offline: bool = False
    session_secret: str | None = None

    @property
    def key(self) -> SessionKey | None:
        """What its session is found by; ``None`` for a session of a single request without an id."""
        return None if self.session_id is None else SessionKey(self.session_id, self.session_secret)
