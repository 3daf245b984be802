"""How an utterance ended, and what is written down of it: one line of JSON in the log. Never its text, its voice or a key."""

from __future__ import annotations

import datetime
import json
import logging
import time
from dataclasses import dataclass, field
from enum import StrEnum

from bistream.errors import (
    BistreamError,
    BusyError,
    InvalidInputError,
    SessionTimeoutError,
    ShuttingDownError,
    UnknownSpeakerError,
)
from interfaces.core.errors import SlowReaderError
from interfaces.core.trace import Trace

logger = logging.getLogger("interfaces.utterances")

_REFUSALS = (BusyError, InvalidInputError, ShuttingDownError, UnknownSpeakerError)
_TIMEOUTS = (SessionTimeoutError, SlowReaderError)


class Ending(StrEnum):
    """Every utterance has exactly one: of the metric ``bistream_interfaces_endings_total`` and of its line in the log."""

    DONE = "done"
    CANCELLED = "cancelled"  # by a message of the client
    LEFT = "left"  # the client has gone
    REFUSED = "refused"  # before any audio: a limit, a drain of the servers, an unknown voice, a value out of range
    FAILED = "failed"  # before any audio
    CUT_OFF = "cut_off"  # an error after the first audio
    TIMED_OUT = "timed_out"  # the client sent, or read, nothing for too long
    DRAINED = "drained"  # this process ended before the utterance did


def ending_of(error: BistreamError, has_audio: bool) -> Ending:
    if isinstance(error, _TIMEOUTS):
        return Ending.TIMED_OUT
    if has_audio:
        return Ending.CUT_OFF
    return Ending.REFUSED if isinstance(error, _REFUSALS) else Ending.FAILED


@dataclass
class SpeechRecord:
    """first_audio_s: from the first text to the first audio; None: there was neither. sessions: their ids, as servers log them.
    ending: None while the utterance lives; ``end`` and ``fail`` keep the first one. code: of the error that ended it."""

    sessions: list[str] = field(default_factory=list)
    audio_s: float = 0.0
    first_audio_s: float | None = None
    text_at: float | None = None
    ending: Ending | None = None
    code: str | None = None

    def on_text(self) -> None:
        if self.text_at is None:
            self.text_at = time.monotonic()

    def on_audio(self, duration_s: float) -> None:
        self.audio_s += duration_s
        if self.first_audio_s is None and self.text_at is not None:
            self.first_audio_s = time.monotonic() - self.text_at

    def end(self, ending: Ending, code: str | None = None) -> None:
        if self.ending is None:
            self.ending, self.code = ending, code

    def fail(self, error: BistreamError) -> None:
        self.end(ending_of(error, self.audio_s > 0), error.code)

    @property
    def reason(self) -> str:
        """``eos``, ``cancelled`` (by the client, or it went), or the code of the error in lower case."""
        if self.ending is Ending.DONE:
            return "eos"
        return "cancelled" if self.code is None else self.code.lower()


def log_line(record: SpeechRecord, trace: Trace, characters: int, left_out: int = 0) -> None:
    """left_out: lines of this client without audio that were not written before this one."""
    if not logger.isEnabledFor(logging.INFO):
        return
    line = {
        "event": "utterance_end",
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        "id": trace.request_id,
        "traceparent": trace.traceparent,
        "sessions": record.sessions,
        "characters": characters,
        "audio_s": round(record.audio_s, 3),
        "first_audio_s": None if record.first_audio_s is None else round(record.first_audio_s, 4),
        "ending": record.ending,
        "reason": record.reason,
    }
    if left_out:
        line["left_out"] = left_out
    logger.info(json.dumps(line))
