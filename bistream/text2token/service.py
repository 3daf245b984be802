"""The speech token service: sessions' text pieces in (bytes), speech tokens out through a callback per session.

Called by ``llm_bistream`` and, in one process, by ``local``. Importing this module does not load torch; making a service does.

**Layout.** A session whose start carries the whole text (``is_end``) uses the uni-stream layout; every other session the
bi-stream layout, whatever its pieces.

**Positions.** The engine guarantees a session the positions it was opened with, so a session never stalls halfway. How many a
session needs is unknown while its text is still arriving, so a session fed in pieces reserves ``RuntimeConfig.max_session_tokens``
(prompt, text and speech together) and ends with finish reason ``length`` if it would exceed them; a one-shot session
reserves its own worst case (20 speech tokens per text token) if that is less. By default the cache has room for
``max_sessions`` such sessions; with ``kv_cache_tokens`` set, ``kv_cache_tokens / max_session_tokens`` are always admitted.

**Ends.** Every session that ``start`` accepted ends with exactly one message, its last, that is a ``BistreamError`` or has a
finish reason. By then everything the session held is free and its id can be used again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bistream.config import LanguageModelConfig, RuntimeConfig
from bistream.errors import BusyError, CancelledError, EngineError, InvalidInputError, SessionExistsError, ShuttingDownError
from bistream.limits import check_sampling, check_transcript_length
from bistream.rates import MAX_SPEECH_TOKENS_PER_TEXT_TOKEN, MIN_SPEECH_TOKENS_PER_TEXT_TOKEN
from bistream.text2token.engine import FAILED_SENTENCE, SamplingSpec, TokenSpace
from bistream.text2token.factory import LanguageModelParts, load_parts
from bistream.text2token.interleave import Interleaver, UnistreamLayout
from bistream.text2token.layout import Layout
from bistream.text2token.text_session import MessageSink, TextSession, unknown_session
from bistream.types import IntArray, Sampling

if TYPE_CHECKING:
    from bistream.gpu.tier import TierChoice

EXPIRE_INTERVAL_S = 0.5  # between checks for expired leases
_SHUTTING_DOWN = "The server is shutting down and accepts no new sessions; use another one."


@dataclass(frozen=True)
class LanguageModelStart:
    """text: UTF-8, may end inside a character unless ``is_end``. prompt_speech_tokens: int32 [P], raw codes of the reference."""

    session_id: str
    text: bytes
    is_end: bool
    prompt_text: str
    prompt_speech_tokens: IntArray
    sampling: Sampling


class SpeechTokenService:
    """Thread-safe. ``parts`` are used instead of loading ``config.model_dir``; without a timer the owner calls ``expire`` itself."""

    def __init__(
        self,
        config: RuntimeConfig,
        clock: Callable[[], float] = time.monotonic,
        parts: LanguageModelParts | None = None,
        run_timer: bool = True,
    ) -> None:
        self._config = config
        self._clock = clock
        self._parts = load_parts(config) if parts is None else parts
        sizes = self._parts.sizes
        self._space = TokenSpace(sizes.text_vocab_size, sizes.speech_token_size)
        longest = self._parts.engine.capabilities.max_sequence_ids
        self._max_ids = min(config.max_session_tokens, sizes.max_position_embeddings, longest)
        self._sessions: dict[str, TextSession] = {}
        self._changed = threading.Condition()  # guards _sessions and _draining
        self._draining = False
        self._stopped = threading.Event()
        self._timer: threading.Thread | None = None
        if run_timer:
            self._timer = threading.Thread(target=self._run_timer, name="text2token-expire", daemon=True)
            self._timer.start()

    def start(self, request: LanguageModelStart, sink: MessageSink) -> None:
        """Accept a session; its messages go to ``sink``, on the engine's thread or on a thread that calls this service.

        Raises ``InvalidInputError``, ``SessionExistsError``, ``BusyError`` or ``ShuttingDownError``; ``sink`` is then never called.
        """
        session_id = request.session_id
        try:
            prompt_text, prompt_speech = self._check_prompt(request)
            spec = make_sampling_spec(request.sampling, self._parts.sizes)
        except InvalidInputError as error:
            error.session_id = session_id
            raise

        def make_layout(num_text: int) -> tuple[Layout, int]:
            max_ids = self._positions(request, len(prompt_text) + len(prompt_speech), num_text)
            if request.is_end:
                return UnistreamLayout(self._space, prompt_text, prompt_speech, max_ids=max_ids), max_ids
            mix_ratio = self._parts.sizes.mix_ratio
            return Interleaver(self._space, prompt_text, prompt_speech, mix_ratio=mix_ratio, max_ids=max_ids), max_ids

        session = TextSession(session_id, self._space, self._parts.tokenizer, self._config.max_text_chars, sink, self._forget)
        self._register(session)
        session.open(request.text, request.is_end, self._lease_end(), self._parts.engine, spec, make_layout)

    def append(self, session_id: str, text: bytes, is_end: bool) -> None:
        """Add text to a live session; empty text without ``is_end`` only renews its lease.

        Raises ``UnknownSessionError`` for a session that is not live, ``InvalidInputError`` for text over the limit or after
        the end of the text (the session continues without it), for text that is not UTF-8 and for a session whose whole text is
        empty (the session ends with the same error).
        """
        self._find(session_id).append(text, is_end, self._lease_end())

    def cancel(self, session_id: str) -> None:
        """End a live session with ``CancelledError``. Raises ``UnknownSessionError`` for a session that is not live."""
        if not self._find(session_id).finish(CancelledError("The session was cancelled by its client.", session_id)):
            raise unknown_session(session_id)

    def expire(self) -> None:
        """End sessions that wait for text and have received none for ``session_idle_timeout_s``, with ``SessionTimeoutError``.

        Once the engine has failed, end all with ``EngineError``: those waiting for text have no turn to report the failure.
        """
        now = self._clock()
        for session in self._live_sessions():
            if self.healthy:
                session.expire(now)
            else:
                session.finish(EngineError(FAILED_SENTENCE))

    def drain(self, deadline_s: float) -> None:
        """Refuse new sessions; running ones finish within ``deadline_s`` or end with ``ShuttingDownError``. Blocks."""
        with self._changed:
            self._draining = True
            self._changed.wait_for(lambda: not self._sessions, timeout=deadline_s)
        for session in self._live_sessions():
            session.finish(ShuttingDownError("The server is shutting down; use another one.", session.session_id))

    def close(self) -> None:
        """``drain`` for ``drain_timeout_s``, then stop the engine and the timer. Idempotent."""
        self.drain(self._config.drain_timeout_s)
        self._stopped.set()
        if self._timer is not None:
            self._timer.join()
        self._parts.engine.close()

    @property
    def num_sessions(self) -> int:
        with self._changed:
            return len(self._sessions)

    @property
    def healthy(self) -> bool:
        """False once the engine has failed; only a new process can recover."""
        return self._parts.engine.healthy

    @property
    def tiers(self) -> tuple[TierChoice, ...]:
        """The tier that serves each of the engine's networks."""
        return self._parts.tiers

    # -- inside ------------------------------------------------------------------------------------------------------

    def _check_prompt(self, request: LanguageModelStart) -> tuple[list[int], list[int]]:
        """Ids of the prompt's text and speech. Raises ``InvalidInputError``."""
        tokens = request.prompt_speech_tokens
        num_codes = self._space.speech_token_size
        if tokens.ndim != 1 or (len(tokens) and not (0 <= int(tokens.min()) and int(tokens.max()) < num_codes)):
            raise InvalidInputError(f"prompt_speech_tokens must be a one-dimensional array of codes from 0 to {num_codes - 1}.")
        check_transcript_length(len(request.prompt_text), self._config.max_text_chars)
        prompt_speech = [self._space.speech_offset + int(token) for token in tokens]
        return self._parts.tokenizer.encode(request.prompt_text), prompt_speech

    def _positions(self, request: LanguageModelStart, num_prompt: int, num_text: int) -> int:
        """Positions to reserve (see the module's docstring). Raises ``InvalidInputError`` if even the minimum does not fit."""
        num_fed = num_prompt + num_text + 2  # sos and task
        least = num_fed + max(1, MIN_SPEECH_TOKENS_PER_TEXT_TOKEN * num_text)
        if least > self._max_ids:
            raise InvalidInputError(
                f"Reference and text need at least {least} tokens, but a session may have at most {self._max_ids}; "
                "send less text or use a shorter reference.",
                request.session_id,
            )
        most = num_fed + MAX_SPEECH_TOKENS_PER_TEXT_TOKEN * num_text
        return min(most, self._max_ids) if request.is_end else self._max_ids

    def _lease_end(self) -> float:
        return self._clock() + self._config.session_idle_timeout_s

    def _register(self, session: TextSession) -> None:
        session_id = session.session_id
        with self._changed:
            if self._draining:
                raise ShuttingDownError(_SHUTTING_DOWN, session_id)
            if session_id in self._sessions:
                raise SessionExistsError("A live session already has this id; use another id or cancel that session.", session_id)
            if len(self._sessions) >= self._config.max_sessions:
                raise BusyError(f"All {self._config.max_sessions} sessions are in use; try again later.", session_id)
            self._sessions[session_id] = session

    def _forget(self, session: TextSession) -> None:
        with self._changed:
            if self._sessions.get(session.session_id) is session:
                del self._sessions[session.session_id]
            self._changed.notify_all()

    def _find(self, session_id: str) -> TextSession:
        with self._changed:
            session = self._sessions.get(session_id)
        if session is None:
            raise unknown_session(session_id)
        return session

    def _live_sessions(self) -> list[TextSession]:
        with self._changed:
            return list(self._sessions.values())

    def _run_timer(self) -> None:
        while not self._stopped.wait(EXPIRE_INTERVAL_S):
            self.expire()


def make_sampling_spec(sampling: Sampling, sizes: LanguageModelConfig) -> SamplingSpec:
    """A session's sampling settings; the checkpoint's values are the defaults. Raises ``InvalidInputError`` for unusable values."""
    top_k = sizes.top_k if sampling.top_k is None else sampling.top_k
    top_p = sizes.top_p if sampling.top_p is None else sampling.top_p
    check_sampling(replace(sampling, top_k=top_k, top_p=top_p))
    return SamplingSpec(top_p, top_k, sizes.win_size, sizes.tau_r, sampling.temperature, sampling.seed)
