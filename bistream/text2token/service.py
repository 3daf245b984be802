"""The speech token service: sessions' text pieces in (bytes), speech tokens out through a callback per session.

Called by ``llm_bistream`` and, in one process, by ``local``. Importing this module does not load torch; making a service does.

**Layout.** A session whose start carries the whole text (``is_end``) uses the uni-stream layout; every other session the
bi-stream layout, whatever its pieces.

**Positions.** The engine guarantees a session the positions it was opened with, so a session never stalls halfway. How many a
session needs is unknown while its text is still arriving, so a session fed in pieces reserves its prompt and the longest utterance of the
checkpoint's training, spoken as slowly as the layout allows; a one-shot session reserves its own worst case (20 speech tokens per text
token) if that is less, and none more than ``RuntimeConfig.max_session_tokens``. A longer text goes on in another sequence of as many
(``segments.py``). By default the cache has room for ``max_sessions`` such sessions (``engine_settings.with_cache``).

**Ends.** Every session that ``start`` accepted ends with exactly one message, its last, that is a ``BistreamError`` or has a
finish reason. By then everything the session held is free and its id can be used again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from bistream.checkpoints.one_table import OneTableConfig
from bistream.config import RuntimeConfig
from bistream.contract.checks import SSML, check_instruction_length, check_transcript_length
from bistream.contract.ended_sessions import EndedSessions
from bistream.contract.refusals import accepts_no_sessions, cancelled_by_client, session_exists, sessions_taken, shut_down, unknown_session
from bistream.errors import CancelledError, EngineError, InvalidInputError
from bistream.metrics.catalogue import LM_RUNAWAYS
from bistream.metrics.recorder import Recorder
from bistream.text.effort import reads_numbers
from bistream.text.markup import MarkupReader
from bistream.text.normalization import load_for_server
from bistream.text.preparation import chosen_normalization, make_preparation, prepare_prompt
from bistream.text.prompt_form import make_prompt_form, own_instruction
from bistream.text.respelling import ServerLexicon
from bistream.text2token.engine import FAILED_SENTENCE, TokenSpace
from bistream.text2token.factory import LanguageModelParts, load_parts
from bistream.text2token.one_table.layouts import SentenceLayouts
from bistream.text2token.one_table.voice_design import VoiceDesigner
from bistream.text2token.parted_layout import PartedLayout
from bistream.text2token.requested_sampling import make_sampling_spec
from bistream.text2token.runaway import KINDS, Runaway
from bistream.text2token.sequence_series import OUTCOMES, Outcome, SequenceSeries
from bistream.text2token.session_layout import PromptIds, SessionLayouts
from bistream.text2token.silence import SilenceThinning
from bistream.text2token.spoken_before import SpokenBefore
from bistream.text2token.text_session import MessageSink, TextSession
from bistream.types import GenerationOptions, IntArray

if TYPE_CHECKING:
    from bistream.gpu.tier import TierChoice

EXPIRE_INTERVAL_S = 0.5  # between checks for expired leases


@dataclass(frozen=True)
class LanguageModelStart:
    """text: UTF-8, may end inside a character unless ``is_end``. prompt_speech_tokens: int32 [P], raw codes of the reference.
    speaker_tokens: int32, numbers of the voice, of families whose language model is told of it (``one_table.prompts.SpeakerTokens``).
    options: an empty ``instruct_text`` is none; without ``text_normalization``, ``RuntimeConfig.text_normalization`` counts."""

    session_id: str
    text: bytes
    is_end: bool
    prompt_text: str
    prompt_speech_tokens: IntArray
    options: GenerationOptions = GenerationOptions()
    speaker_tokens: IntArray = field(default_factory=lambda: np.zeros(0, np.int32))


class SpeechTokenService:
    """Thread-safe. ``parts`` are used instead of loading ``config.model_dir``; without a timer the owner calls ``expire`` itself."""

    def __init__(
        self,
        config: RuntimeConfig,
        clock: Callable[[], float] = time.monotonic,
        parts: LanguageModelParts | None = None,
        run_timer: bool = True,
        recorder: Recorder | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        if reads_numbers(config.text_normalization):
            load_for_server()
        self._parts = load_parts(config, recorder) if parts is None else parts
        self._lexicon = ServerLexicon.from_file(config.lexicon, self._parts.tokenizer.spoken_tokens)
        sizes = self._parts.sizes
        self._space = TokenSpace.of(sizes)
        longest = self._parts.engine.longest_sequence
        max_ids = min(config.max_session_tokens, sizes.max_position_embeddings, longest)
        self._layouts: SessionLayouts | SentenceLayouts = (
            SentenceLayouts(sizes, self._parts.tokenizer, max_ids)
            if isinstance(sizes, OneTableConfig)
            else SessionLayouts(self._parts, max_ids)
        )
        self._sessions: dict[str, TextSession] = {}
        self._ended = EndedSessions()
        self._runaway_window = round(config.runaway_s * sizes.tokens_per_second)
        counters = recorder or Recorder()
        self._spoken_before = SpokenBefore(self._layouts, clock, counters)
        self._runaways = {(kind, outcome): counters.counter(LM_RUNAWAYS, kind, outcome) for kind in KINDS for outcome in OUTCOMES}
        self._changed = threading.Condition()  # guards _sessions, _ended and _draining
        self._draining = False
        self._stopped = threading.Event()
        self._timer: threading.Thread | None = None
        if run_timer:
            self._timer = threading.Thread(target=self._run_timer, name="text2token-expire", daemon=True)
            self._timer.start()

    @property
    def tokens_per_second(self) -> int:
        """Of speech."""
        return self._space.tokens_per_second

    def start(self, request: LanguageModelStart, sink: MessageSink) -> None:
        """Accept a session; its messages go to ``sink``, on the engine's thread or on a thread that calls this service.

        Raises ``InvalidInputError``, ``SessionExistsError``, ``BusyError`` or ``ShuttingDownError``; ``sink`` is then never called.
        """
        session_id = request.session_id
        request, skipped = self._take_own_instruction(request)
        try:
            normalization = chosen_normalization(request.options.text_normalization, self._config.text_normalization)
            prompt = self._check_prompt(request, normalization)
            marks, respellings = self._parts.card.unknown_marks, self._lexicon.with_own(request.options.lexicon)
            preparation = make_preparation(normalization, request.prompt_text, marks, respellings, self._config.max_text_chars)
            if preparation is None and request.options.lexicon:
                raise InvalidInputError("Raw text is spoken as it is; leave lexicon out, or set text_normalization to off.")
            spec = make_sampling_spec(request.options, self._parts.sizes)
        except InvalidInputError as error:
            error.session_id = session_id
            raise

        first = self._spoken_before.beginning(prompt, request.is_end, request.options.continues)

        def make_parts(num_text: int) -> tuple[PartedLayout, SequenceSeries]:
            max_ids = self._layouts.positions(prompt, num_text, request.is_end, first)
            make = partial(self._layouts.make, prompt, request.is_end, max_ids)
            layout = PartedLayout(make, make(first))
            self._spoken_before.begun(session_id, layout)
            runaways = self._runaway_window, self._count_runaway
            return layout, SequenceSeries(self._parts.engine, session_id, spec, max_ids, runaways, self._clock)

        limits = (self._config.max_text_chars, self._config.session_idle_timeout_s)
        reading = (preparation, MarkupReader(self._parts.tokenizer.spoken_tokens) if request.options.text_type == SSML else None)
        silence = SilenceThinning(self._parts.family.silent_tokens, *map(int, request.prompt_speech_tokens[-1:]))
        session = TextSession(session_id, self._space, self._parts.tokenizer, *limits, sink, self._forget, *reading, silence, skipped)
        self._register(session)
        session.open(request.text, request.is_end, self._clock(), make_parts)

    def append(self, session_id: str, text: bytes, is_end: bool) -> None:
        """Add text to a live session; empty text without ``is_end`` only renews its lease.

        Raises ``UnknownSessionError`` for a session that is not live, or the error that it ended with; ``InvalidInputError`` for text
        over a limit or after the end of the text (the session continues without it), for text that is not UTF-8 and for a session whose
        whole text is empty (the session ends with the same error).
        """
        self._find(session_id).append(text, is_end, self._clock())

    def demand(self, session_id: str, slack_s: float, wanted_tokens: int) -> None:
        """A caller asks for tokens of a session, which may have ended: see ``engine.TakesDemands``. Raises ``InvalidInputError``."""
        if not 0.0 <= slack_s < math.inf:
            raise InvalidInputError(f"slack_s is {slack_s}; send the seconds of audio that the listener has left, 0 or more.", session_id)
        with self._changed:
            session = self._sessions.get(session_id)
        if session is not None:
            session.demand(slack_s, wanted_tokens)

    def cancel(self, session_id: str) -> None:
        """End a live session with ``CancelledError``. Raises the same for one that was cancelled, else ``UnknownSessionError``."""
        with self._changed:
            session, late = self._sessions.get(session_id), self._ended.error_of(session_id, session_id)
        if session is None or not session.finish(cancelled_by_client(session_id)):
            raise late if isinstance(late, CancelledError) else unknown_session(session_id)

    def expire(self) -> None:
        """End sessions that wait for text and were left alone for too long (``TextSession.expire``), with ``SessionTimeoutError``.

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
            session.finish(shut_down(session.session_id))

    def close(self) -> None:
        """``drain`` for ``drain_timeout_s``, then stop the engine and the timer. Idempotent."""
        self.drain(self._config.drain_timeout_s)
        self._stopped.set()
        if self._timer is not None:
            self._timer.join()
        self._parts.close()

    @property
    def num_sessions(self) -> int:
        with self._changed:
            return len(self._sessions)

    @property
    def voices(self) -> VoiceDesigner:
        """What makes voices of labels. Raises ``InvalidInputError`` where the checkpoint makes none."""
        return self._parts.designer

    @property
    def healthy(self) -> bool:
        """False once an engine has failed; only a new process can recover."""
        return self._parts.engine.healthy and (self._parts.voices is None or self._parts.voices.healthy)

    @property
    def tiers(self) -> tuple[TierChoice, ...]:
        """The tier that serves each of the engine's networks."""
        return self._parts.engine.tiers

    # -- inside ------------------------------------------------------------------------------------------------------

    def _take_own_instruction(self, request: LanguageModelStart) -> tuple[LanguageModelStart, int]:
        """With the instruction of a text that begins with one, where the prompt has none; and the characters that the text is shorter."""
        if request.options.instruct_text or request.prompt_text or request.options.text_type == SSML:
            return request, 0
        instruction, text = own_instruction(self._parts.family.default_instruction, request.text)
        return replace(request, text=text, options=replace(request.options, instruct_text=instruction)), len(instruction)

    def _check_prompt(self, request: LanguageModelStart, normalization: str) -> PromptIds:
        """The numbers of an instruction are never read out. Raises ``InvalidInputError``."""
        tokens = request.prompt_speech_tokens
        num_codes = self._space.speech_token_size
        if tokens.ndim != 1 or (len(tokens) and not (0 <= int(tokens.min()) and int(tokens.max()) < num_codes)):
            raise InvalidInputError(f"prompt_speech_tokens must be a one-dimensional array of codes from 0 to {num_codes - 1}.")
        check_transcript_length(len(request.prompt_text), self._config.max_text_chars)
        check_instruction_length(len(request.options.instruct_text), self._config.max_text_chars)
        encode = self._parts.tokenizer.encode
        prompt_speech = [self._space.speech_offset + int(token) for token in tokens]
        form = make_prompt_form(self._parts.family.default_instruction, request.options.instruct_text, request.prompt_text)
        special = frozenset(self._parts.tokenizer.special_tokens)
        transcript = prepare_prompt(form.transcript, normalization, special, is_spoken=True)
        instruction = prepare_prompt(form.instruction, normalization, special, is_spoken=False)
        return PromptIds(encode(instruction), encode(transcript), prompt_speech if form.has_speech else [], request.speaker_tokens.tolist())

    def _count_runaway(self, kind: Runaway, outcome: Outcome) -> None:
        self._runaways[kind, outcome].inc()

    def _register(self, session: TextSession) -> None:
        session_id = session.session_id
        with self._changed:
            if self._draining:
                raise accepts_no_sessions(session_id)
            if session_id in self._sessions:
                raise session_exists(session_id)
            if len(self._sessions) >= self._config.max_sessions:
                raise sessions_taken(self._config.max_sessions, session_id)
            self._sessions[session_id] = session
            self._ended.discard(session_id)

    def _forget(self, session: TextSession) -> None:
        with self._changed:
            if self._sessions.get(session.session_id) is session:
                del self._sessions[session.session_id]
                self._spoken_before.ended(session.session_id, is_finished=session.end_error is None)
                if session.end is not None:
                    self._ended.add(session.session_id, session.end_error)
            self._changed.notify_all()

    def _find(self, session_id: str) -> TextSession:
        with self._changed:
            session = self._sessions.get(session_id)
            if session is None:
                raise self._ended.error_of(session_id, session_id)
        return session

    def _live_sessions(self) -> list[TextSession]:
        with self._changed:
            return list(self._sessions.values())

    def _run_timer(self) -> None:
        while not self._stopped.wait(EXPIRE_INTERVAL_S):
            self.expire()
