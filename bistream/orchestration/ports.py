"""The seams of the orchestrator: the models it uses, the requests it is given, the senders it answers to.

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
    """The two networks that listen to a reference recording. Both block and raise ``BistreamError``."""

    def prompt_speech_tokens(self, reference_wav: FloatArray) -> IntArray:
        """float32 [N] at 16 kHz -> int32 [P], raw codes, 25 per second."""

    def speaker_embedding(self, reference_wav: FloatArray) -> FloatArray:
        """float32 [N] at 16 kHz -> float32 [E]."""


class LanguageModelPort(Protocol):
    def stream(self, start: LanguageModelStart, wanted_tokens: Callable[[], int]) -> Iterator[SpeechTokens]:
        """Start a session and yield its speech tokens, the last message with a ``finish_reason``.

        wanted_tokens: how many tokens are of use now; a port may gather them to messages of about that size.
        The call and the iterator block; either raises ``BistreamError``, after which the session is gone. A session that was
        cancelled ends with ``FinishReason.CANCELLED`` or ``CancelledError``. Iterated by one thread only.
        """

    def append(self, session_id: str, text: bytes, is_end: bool) -> None:
        """More text; empty text without ``is_end`` renews the lease. ``UnknownSessionError`` before the start has arrived."""

    def cancel(self, session_id: str) -> None:
        """Free everything of the session. A session that is unknown is no error."""


class Token2WavPort(Protocol):
    def hop(self, hop: Token2WavHop) -> FloatArray:
        """The next waveform of a session, float32 [N], 24 kHz; after ``finalize`` it is gone. Blocks; raises ``BistreamError``."""

    def synthesize(self, token_ids: Sequence[int], prompt: VoicePrompt, seed: int, speed: float) -> FloatArray:
        """A whole utterance at once, full attention, without a session. Blocks; raises ``BistreamError``."""

    def cancel(self, session_id: str) -> None:
        """Free everything of the session. A session that is unknown is no error."""


class AudioSender(Protocol):
    """Where one request is answered. Thread-safe; the orchestrator calls ``finish`` exactly once and nothing after it."""

    def send(self, chunk: AudioChunk) -> None:
        """Must not block for long and must not raise; a chunk for a stream that is gone is dropped."""

    def finish(self, error: BistreamError | None) -> None:
        """The empty final response, or the error and then the final response."""

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

    target_text: UTF-8, may be cut anywhere. reference_wav: float32 [N], 16 kHz mono in [-1, 1], as it came (padding included);
    reference_wav_len: samples of it that count. reference_text: UTF-8.
    offline: solve the whole utterance at once with full attention (``cosyvoice2`` without streaming); also implied by a
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
