"""Deepgram's ``/v2/speak`` (Flux): raw tokens of a language model in, one turn after another, binary audio out. Pure.

``Interrupt`` with the playback offset is answered with the text that was heard: the words that were over by then, by the voice's position.
``Close`` waits for the turns that were flushed; a turn without a flush is interrupted by it.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bistream.client.spoken_words import WORD
from bistream.contract.checks import is_speakable
from bistream.errors import BistreamError, BusyError, InvalidInputError
from interfaces.audio.formats import OutputFormat
from interfaces.core.values import Values
from interfaces.protocols.actions import INTERNAL_ERROR, POLICY_VIOLATION, Action, Close, End, Made, Open, Send
from interfaces.protocols.messages import JsonProtocol, number_in, object_in, text_in
from interfaces.protocols.utterance_queue import PendingUtterance, UtteranceQueue

MIN_SPEED, MAX_SPEED = 0.5, 1.5
MAX_PLAYING_TURNS = 32


@dataclass(frozen=True)
class DeepgramOptions:
    """Of the address. max_text_chars: of one turn. values: of each turn, without its speed."""

    voice: str
    format: OutputFormat
    max_text_chars: int
    speed: float = 1.0
    values: Values = field(default_factory=dict)


def deepgram_speed(value: str) -> float:
    """``speed`` of the address. Raises ``InvalidInputError``."""
    try:
        speed = float(value)
    except ValueError:
        speed = float("nan")
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise InvalidInputError(f"speed must be a number from {MIN_SPEED:g} to {MAX_SPEED:g}; correct it.")
    return speed


@dataclass
class _Turn(PendingUtterance):
    begins_ms: float = 0.0  # on the clock of the session
    audio_ms: float = 0.0
    marks: list[tuple[float, int]] = field(default_factory=list)  # (end of a chunk in the turn, where the voice is then, in characters)

    def spoken_at(self, offset_ms: float) -> int:
        """Characters of the words that are over by then; a word that is being spoken is not. Within a chunk the voice goes on evenly."""
        times_ms, positions = zip((0.0, 0), *self.marks, strict=True)
        position = int(np.interp(offset_ms + 1.0, times_ms, positions))
        return next((word.start() for word in WORD.finditer(self.text) if word.start() < position < word.end()), position)

    def metadata(self) -> dict[str, Any]:
        billable = sum(character.isprintable() for character in self.text)
        return {
            "speech_id": self.speech,
            "audio_duration_ms": round(self.audio_ms),
            "input_character_count": len(self.text),
            "billable_character_count": billable,
            "controls_applied": {"pronunciations_applied": self.controls.pronunciations, "breaks_applied": 0, "pronunciation_warnings": 0},
        }


class Deepgram(JsonProtocol):
    def __init__(self, options: DeepgramOptions) -> None:
        self._options = options
        self._speed = options.speed
        self._turns = UtteranceQueue(lambda: _Turn(f"dg_sp_{uuid.uuid4().hex[:12]}"), self._begin, self._end, options.max_text_chars)
        self._made: deque[_Turn] = deque(maxlen=MAX_PLAYING_TURNS)  # over here, and perhaps still being played there
        self._clock_ms = 0.0  # of all audio, less what interruptions cut off
        self._interrupted_ms = 0.0
        self._characters = self._billable = 0

    @property
    def is_idle(self) -> bool:
        return self._turns.active is None

    def opened(self) -> Sequence[Action]:
        return [
            _event(
                "Connected",
                request_id=str(uuid.uuid4()),
                model_name=self._options.voice or "default",
                model_version="bistream",
                model_uuids=[],
            )
        ]

    def _handle(self, values: dict[str, Any]) -> list[Action]:
        handlers = {
            "Speak": self._on_speak,
            "Flush": self._on_flush,
            "Interrupt": self._on_interrupt,
            "Configure": self._on_configure,
            "Close": self._on_close,
        }
        handler = handlers.get(text_in(values, "type") or "")
        if handler is None:
            raise InvalidInputError("type must be Speak, Flush, Interrupt, Configure or Close; correct it.")
        return handler(values)

    def _refuse(self, values: dict[str, Any], error: InvalidInputError) -> list[Action]:
        return [_error("MESSAGE-0000", error), *self._turns.drop(), Close(POLICY_VIOLATION, "MESSAGE-0000")]

    def _on_speak(self, values: dict[str, Any]) -> list[Action]:
        return self._turns.speak(values)

    def _begin(self, turn: _Turn) -> list[Action]:
        turn.begins_ms = self._clock_ms
        values = self._options.values | ({} if self._speed == 1.0 else {"speed": self._speed})
        return [
            Open(turn.speech, self._options.voice, self._options.format, values, continues=True),
            _event("SpeechStarted", speech_id=turn.speech),
        ]

    def _on_flush(self, values: dict[str, Any]) -> list[Action]:
        turn = self._turns.newest
        return [_no_active_speech()] if turn is None or turn.is_flushed else self._turns.flush()

    def _end(self, turn: _Turn) -> list[Action]:
        made: list[Action] = [End(turn.speech), _event("Flushed", speech_id=turn.speech)]
        if not is_speakable(turn.text):
            made.append(_warning("NO_SYNTHESIZABLE_TEXT", "The text holds nothing that can be spoken; the turn is a short silence."))
        return made

    def _on_interrupt(self, values: dict[str, Any]) -> list[Action]:
        offset = object_in(values, "playback_offset")
        played_ms = number_in(offset, "value")
        if offset and (offset.get("type") not in (None, "time_ms") or played_ms is None):
            raise InvalidInputError("playback_offset must have the type time_ms and a value in milliseconds; correct it.")
        active = self._turns.active
        turn = active if played_ms is None else self._heard_at(played_ms)
        if turn is None or (active is None and (played_ms is None or played_ms >= self._clock_ms)):
            return [_no_active_speech()]
        if played_ms is not None and not self._interrupted_ms <= played_ms <= self._clock_ms + 1.0:
            return [_warning("INVALID_INTERRUPT_OFFSET", "playback_offset lies before the last interruption, or after all audio.")]
        cancelled = self._turns.drop()
        event: dict[str, Any] = {"audio_played_ms": round(self._clock_ms if played_ms is None else played_ms)}
        if played_ms is not None:
            spoken = turn.spoken_at(played_ms - turn.begins_ms)
            event |= {"text_spoken": turn.text[:spoken], "text_remaining": turn.text[spoken:]}
            turn.audio_ms = min(turn.audio_ms, max(0.0, played_ms - turn.begins_ms))
            self._clock_ms = played_ms
        self._interrupted_ms = self._clock_ms
        self._made.clear()
        if active is not None:
            self._count(active)
        return [*cancelled, _event("SpeechInterrupted", **event, metadata=turn.metadata()), *self._farewell()]

    def _heard_at(self, played_ms: float) -> _Turn | None:
        """The turn that a listener hears who has played so much: not always the one that is made."""
        turns = [*self._made, *([] if self._turns.active is None else [self._turns.active])]
        return next((turn for turn in reversed(turns) if turn.begins_ms <= played_ms), turns[0] if turns else None)

    def _on_configure(self, values: dict[str, Any]) -> list[Action]:
        try:
            speed = number_in(values, "speed")
        except InvalidInputError:
            speed = float("nan")
        if speed is not None and not MIN_SPEED <= speed <= MAX_SPEED:
            description = f"speed must be a number from {MIN_SPEED:g} to {MAX_SPEED:g}."
            return [_event("ConfigureFailure", code="DATA-0002", description=description)]
        self._speed = self._speed if speed is None else speed
        return [_event("ConfigureSuccess", applied={"speed": self._speed})]

    def _on_close(self, values: dict[str, Any]) -> list[Action]:
        return [*self._turns.close(), *self._farewell()]

    def _farewell(self) -> list[Action]:
        if not self._turns.are_over:
            return []
        totals = {
            "total_audio_duration_ms": round(self._clock_ms),
            "total_input_character_count": self._characters,
            "total_billable_character_count": self._billable,
        }
        return [_event("SessionMetadata", **totals), Close()]

    def audio(self, speech: str, made: Made) -> Sequence[Action]:
        turn = self._turns.speaking(speech)
        turn.audio_ms += made.duration_ms
        self._clock_ms += made.duration_ms
        turn.marks.append((turn.audio_ms, made.position))
        return [Send(made.data)] if made.data else []

    def finished(self, speech: str) -> Sequence[Action]:
        turn = self._turns.speaking(speech)
        self._count(turn)
        self._made.append(turn)
        return [_event("SpeechMetadata", **turn.metadata()), *self._turns.next(), *self._farewell()]

    def failed(self, speech: str, error: BistreamError) -> Sequence[Action]:
        """The connection ends, so that the client connects again and sends its text anew."""
        self._turns.drop()
        code = "NET-0000" if error.retryable or isinstance(error, BusyError) else "DATA-0000"
        return [_error(code, error), Close(INTERNAL_ERROR if error.retryable else POLICY_VIOLATION, code)]

    def _count(self, turn: _Turn) -> None:
        metadata = turn.metadata()
        self._characters += metadata["input_character_count"]
        self._billable += metadata["billable_character_count"]


def _event(kind: str, **fields: Any) -> Send:
    return Send({"type": kind, **fields})


def _warning(code: str, description: str) -> Send:
    return _event("Warning", code=code, description=description)


def _no_active_speech() -> Send:
    return _warning("NO_ACTIVE_SPEECH", "No turn is under way.")


def _error(code: str, error: BistreamError) -> Send:
    return _event("Error", code=code, description=error.sentence)
