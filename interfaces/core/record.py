"""What is written down of an utterance: one line of JSON in the log when it is over. Never its text, its voice or a key."""

from __future__ import annotations

import datetime
import json
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interfaces.core.speech import Speech

logger = logging.getLogger("interfaces.utterances")


@dataclass
class SpeechRecord:
    """first_audio_s: from the first text to the first audio; None: there was neither. sessions: their ids, as servers log them. reason:
    ``eos``, ``cancelled`` (by the client, or it went), or the code of an error in lower case."""

    sessions: list[str] = field(default_factory=list)
    audio_s: float = 0.0
    first_audio_s: float | None = None
    reason: str = "cancelled"
    text_at: float | None = None

    def on_text(self) -> None:
        if self.text_at is None:
            self.text_at = time.monotonic()

    def on_audio(self, duration_s: float) -> None:
        self.audio_s += duration_s
        if self.first_audio_s is None and self.text_at is not None:
            self.first_audio_s = time.monotonic() - self.text_at


def log_line(speech: Speech) -> None:
    record, trace = speech.record, speech.trace
    if not logger.isEnabledFor(logging.INFO):
        return
    line = {
        "event": "utterance_end",
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        "id": trace.request_id,
        "traceparent": trace.traceparent,
        "sessions": record.sessions,
        "characters": speech.characters,
        "audio_s": round(record.audio_s, 3),
        "first_audio_s": None if record.first_audio_s is None else round(record.first_audio_s, 4),
        "reason": record.reason,
    }
    logger.info(json.dumps(line))
