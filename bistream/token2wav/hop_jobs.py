"""Sessions and jobs of the token2wav service. No torch.

Used by ``service``, which decides what is accepted and when it runs.
"""

from __future__ import annotations

import math
from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bistream.contract import checks
from bistream.contract.refusals import has_no_speed
from bistream.errors import BistreamError, InvalidInputError
from bistream.token2wav.renderer import Rendering, SpeechRenderer
from bistream.types import AudioOptions, FloatArray, VoicePrompt

if TYPE_CHECKING:
    from bistream.watermark.filter import MarkState

LARGEST_NUMBER = 1000.0  # of a log-mel or an embedding: what networks compute from larger ones overflows
MAX_HOP_TOKENS = 250  # 10 s; the hop policy sends at most half of it


@dataclass(frozen=True)
class Token2WavHop:
    """New speech tokens of one session. prompt, audio and expected_speech_s are used in the first hop only, which must carry a prompt.

    playback_buffer_s: audio the listener has left; the session with the least is served first. expected_speech_s: of the whole session,
    for which its state is reserved, if that is less than the usual reservation; None: nobody knows. lookahead_tokens, speed: as in
    ``RendererHop``.
    """

    session_id: str
    token_ids: tuple[int, ...]
    finalize: bool
    prompt: VoicePrompt | None = None
    audio: AudioOptions = AudioOptions()
    playback_buffer_s: float = 0.0
    expected_speech_s: float | None = None
    lookahead_tokens: int | None = None
    speed: float = 1.0


@dataclass(eq=False)
class AudioSession:
    """The service's state of one session.

    jobs: accepted and not yet answered, oldest first; the oldest one is in the queue or being computed.
    """

    session_id: str
    prompt: VoicePrompt
    audio: AudioOptions
    last_active_s: float
    expected_speech_s: float | None = None
    jobs: deque[HopJob] = field(default_factory=deque)
    received_tokens: int = 0
    is_finalizing: bool = False  # its final hop was accepted
    has_ended: bool = False  # unreachable; the worker frees it
    rendering: Rendering | None = None  # from its first hop on
    mark: MarkState | None = None  # of the watermark, from its first audio on

    def close(self) -> None:
        """Free the renderer's state. Idempotent; on the worker thread only."""
        if self.rendering is not None:
            self.rendering.close()
        self.rendering = None


@dataclass(eq=False)
class HopJob:
    session: AudioSession
    hop: Token2WavHop
    is_first: bool
    deadline_s: float
    future: Future[FloatArray]

    @property
    def is_over(self) -> bool:
        return self.session.has_ended

    @property
    def needs_computing(self) -> bool:
        """False for a lease renewal and for the end of a session that never received a token."""
        is_all_heard = self.hop.finalize or self.hop.lookahead_tokens is not None
        return bool(self.hop.token_ids) or (is_all_heard and self.session.received_tokens > 0)


def check_prompt(renderer: SpeechRenderer, prompt: VoicePrompt) -> None:
    """Raises ``InvalidInputError`` unless the renderer takes the prompt and its numbers are those of a recording."""
    if prompt.speech_tokens.ndim != 1:
        raise InvalidInputError(f"prompt_speech_tokens has shape {list(prompt.speech_tokens.shape)}; it must be one-dimensional.")
    renderer.check_prompt(prompt)
    for name, values in (("prompt_speech_feat", prompt.speech_feat), ("prompt_spk_embedding", prompt.speaker_embedding)):
        if not (np.abs(values) <= LARGEST_NUMBER).all():  # false for NaN
            raise InvalidInputError(f"{name} contains NaN or numbers beyond ±{LARGEST_NUMBER:g}; check the reference recording.")


def check_speed(renderer: SpeechRenderer, speed: float) -> None:
    """Raises ``InvalidInputError`` for a speed out of range, and for any but 1 where there is no mel to stretch."""
    checks.check_speed(speed)
    if speed != 1.0 and not renderer.sizes.mel_bins:
        raise has_no_speed()


def check_hop(renderer: SpeechRenderer, hop: Token2WavHop) -> None:
    """Raises ``InvalidInputError``. The bound on the tokens keeps one session from holding up all others for long."""
    if len(hop.token_ids) > MAX_HOP_TOKENS:
        raise InvalidInputError(f"A hop of {len(hop.token_ids)} speech tokens is too long; send at most {MAX_HOP_TOKENS} in each.")
    renderer.check_tokens(hop.token_ids)
    check_speed(renderer, hop.speed)
    if hop.lookahead_tokens is not None and not renderer.sizes.may_hurry:
        raise InvalidInputError("The lookahead of this model is fixed; leave lookahead_tokens out.")
    if hop.lookahead_tokens is not None and hop.lookahead_tokens < 0:
        raise InvalidInputError(f"lookahead_tokens is {hop.lookahead_tokens}; send 0 or more.")
    if not (math.isfinite(hop.playback_buffer_s) and hop.playback_buffer_s >= 0):
        raise InvalidInputError(f"playback_buffer_s is {hop.playback_buffer_s}; send the seconds of audio left, 0 or more.")
    if hop.expected_speech_s is not None and not (math.isfinite(hop.expected_speech_s) and hop.expected_speech_s >= 0):
        raise InvalidInputError(f"expected_speech_s is {hop.expected_speech_s}; send the seconds of speech to expect, 0 or more.")


def settle(future: Future[FloatArray], outcome: FloatArray | BistreamError) -> None:
    """Resolve a future unless a cancel did so while its job was being computed."""
    with suppress(InvalidStateError):
        if isinstance(outcome, BistreamError):
            future.set_exception(outcome.renewed(outcome.session_id))
        else:
            future.set_result(outcome)


def running_future() -> Future[FloatArray]:
    """A future that its receiver cannot cancel; ``Token2Wav.cancel`` does."""
    future: Future[FloatArray] = Future()
    future.set_running_or_notify_cancel()
    return future
