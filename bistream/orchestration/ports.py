"""Interfaces of the orchestrator: the models it uses, the requests it receives, the senders it answers through.

``local.py`` implements the ports in one process, ``triton/bls_ports.py`` over BLS, tests with fakes. Nothing here computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from bistream.errors import BistreamError
from bistream.text2token.service import LanguageModelStart
from bistream.token2wav.service import Token2WavHop
from bistream.types import AudioChunk, FloatArray, IntArray, Sampling, SpeechTokens, VoicePrompt


class VoicePort(Protocol):
    """The two networks that analyse a reference recording. Both block and raise ``BistreamError``."""

    def prompt_speech_tokens(self, reference_wav: FloatArray) -> IntArray:
        """float32 [N] at 16 kHz -> int32 [P], raw codes, 25 per second."""

    def speaker_embedding(self, reference_wav: FloatArray) -> FloatArray:
        """float32 [N] at 16 kHz -> float32 [E]."""


class LanguageModelPort(Protocol):
    def stream(self, start: LanguageModelStart, wanted_tokens: Callable[[], int]) -> Iterator[SpeechTokens]:
        """Start a session and yield its speech tokens, the last message with a ``finish_reason``.

        wanted_tokens: how many tokens are useful now; a port may batch them into messages of about that size.
        The call and the iterator block; either may raise ``BistreamError``, after which the session is gone. A cancelled
        session ends with ``FinishReason.CANCELLED`` or ``CancelledError``. Iterated by one thread only.
        """

    def append(self, session_id: str, text: bytes, is_end: bool) -> None:
        """Send more text; empty text without ``is_end`` renews the lease. Raises ``UnknownSessionError`` before the start has arrived."""

    def cancel(self, session_id: str) -> None:
        """Free everything the session holds. An unknown session is not an error."""


class Token2WavPort(Protocol):
    def hop(self, hop: Token2WavHop) -> FloatArray:
        """The next waveform of a session, float32 [N], 24 kHz; after ``finalize`` it is gone. Blocks; raises ``BistreamError``."""

    def synthesize(self, token_ids: Sequence[int], prompt: VoicePrompt, seed: int, speed: float) -> FloatArray:
        """A whole utterance at once, with full attention and without a session. Blocks; raises ``BistreamError``."""

    def cancel(self, session_id: str) -> None:
        """Free everything the session holds. An unknown session is not an error."""


class AudioSender(Protocol):
    """Answers one request. Thread-safe; the orchestrator calls ``finish`` exactly once and nothing after it."""

    def send(self, chunk: AudioChunk) -> None:
        """Must not block for long and must not raise; a chunk for a closed stream is dropped."""

    def finish(self, error: BistreamError | None) -> None:
        """Send the empty final response, or the error and then the final response."""

    def is_cancelled(self) -> bool:
        """Whether the client's stream is gone."""


@dataclass(frozen=True)
class Ports:
    """The models of one pipeline."""

    voice: VoicePort
    language_model: LanguageModelPort
    token2wav: Token2WavPort


@dataclass(frozen=True)
class BistreamRequest:
    """One request to ``cosyvoice2_bistream`` after parsing; ``None`` is an absent input. Values are not yet checked.

    target_text: UTF-8, may be cut anywhere. reference_wav: float32 [N], 16 kHz mono in [-1, 1], as received (padding included);
    reference_wav_len: how many of its samples are valid. reference_text: UTF-8.
    offline: render the whole utterance at once with full attention (``cosyvoice2`` without streaming); also implied by a
    ``speed`` other than 1.0. Only with the whole text in this request.
    """

    target_text: bytes | None = None
    reference_wav: FloatArray | None = None
    reference_wav_len: int | None = None
    reference_text: bytes | None = None
    speaker_id: str | None = None
    session_id: str | None = None
    is_start: bool = True
    is_end: bool = True
    is_cancel: bool = False
    sampling: Sampling = Sampling()
    speed: float | None = None
    offline: bool = False
