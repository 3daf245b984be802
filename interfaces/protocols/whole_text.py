"""One text over HTTP, all of which is there: its audio as bytes, or as OpenAI's server-sent events. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

from bistream.errors import BistreamError
from interfaces.audio.formats import OutputFormat
from interfaces.core.text import Item
from interfaces.core.values import Values
from interfaces.protocols.actions import Action, Append, End, Made, Open, Send

_SPEECH = "1"


class WholeText:
    """Bytes as they are."""

    is_idle = False

    def __init__(self, voice: str, items: Sequence[Item], target: OutputFormat, values: Values, gain: float = 1.0) -> None:
        """gain: factor of the samples."""
        self._opening = Open(_SPEECH, voice, target, values, gain)
        self._items = items

    def opened(self) -> Sequence[Action]:
        return [self._opening, *(Append(_SPEECH, item) for item in self._items), End(_SPEECH)]

    def received(self, message: str | bytes) -> Sequence[Action]:
        return []

    def audio(self, speech: str, made: Made) -> Sequence[Action]:
        return [Send(made.data)] if made.data else []

    def flushed(self, speech: str) -> Sequence[Action]:
        return []

    def finished(self, speech: str) -> Sequence[Action]:
        return []

    def failed(self, speech: str, error: BistreamError) -> Sequence[Action]:
        return []


class WholeTextEvents(WholeText):
    """OpenAI's events."""

    def __init__(
        self,
        voice: str,
        text: str,
        target: OutputFormat,
        values: Values,
        tokens_per_second: int,
        describe: Callable[[BistreamError], dict[str, Any]],
    ) -> None:
        """tokens_per_second: of speech. describe: an error as its object in the answer."""
        super().__init__(voice, [text], target, values)
        self._characters = len(text)
        self._tokens_per_second = tokens_per_second
        self._describe = describe
        self._audio_ms = 0.0

    def audio(self, speech: str, made: Made) -> Sequence[Action]:
        self._audio_ms += made.duration_ms
        if not made.data:
            return []
        return [_event({"type": "speech.audio.delta", "audio": base64.b64encode(made.data).decode("ascii")})]

    def finished(self, speech: str) -> Sequence[Action]:
        """Characters stand for the input's tokens, which only the servers count; the output's are speech tokens."""
        made = round(self._audio_ms / 1000 * self._tokens_per_second)
        usage = {"input_tokens": self._characters, "output_tokens": made, "total_tokens": self._characters + made}
        return [_event({"type": "speech.audio.done", "usage": usage})]

    def failed(self, speech: str, error: BistreamError) -> Sequence[Action]:
        described = {**self._describe(error), "partial_audio": True, "action": "discard"}
        return [_event({"type": "speech.audio.error", "error": described})]


def _event(values: dict[str, Any]) -> Send:
    return Send(b"data: " + json.dumps(values, separators=(",", ":")).encode("ascii") + b"\n\n")
