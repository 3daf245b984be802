"""Cartesia's ``/tts/websocket``: contexts beside each other, audio in base64, words with their times. Pure.

Every message repeats all settings; those of the message that opens a context hold for it. A cancel is answered by nothing: the package
would take a ``done`` of a cancelled context as the end of another one. What comes for a context that has failed or was cancelled is
refused, so that the rest of a text is not spoken without its beginning. ``step_time`` is left out, since nothing is measured here.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bistream.client.spoken_words import WORD, SpokenWord, SpokenWords
from bistream.errors import BistreamError, BusyError, InvalidInputError, UnknownSpeakerError
from interfaces.audio.formats import cartesia_format
from interfaces.core.lexicons import Lexicons
from interfaces.core.text import Item
from interfaces.core.values import Values, instructed
from interfaces.protocols.actions import POLICY_VIOLATION, Action, Append, Cancel, Close, End, Flush, Made, Open, Send
from interfaces.protocols.cartesia_tags import CartesiaTags
from interfaces.protocols.messages import JsonProtocol, name_in, name_or_none, number_in, object_in, reading_in, text_in
from interfaces.settings import InterfaceLimits

MAX_REMEMBERED = 64  # contexts that have failed or were cancelled
_PARTIAL, _COMPLETE = 206, 200


@dataclass
class _Context:
    name: str
    speech: str
    words: SpokenWords | None  # None: not asked for
    tags: CartesiaTags
    characters: int = 0  # received
    flush_id: int = 1  # of the audio that comes now
    is_ending: bool = False

    def read(self, text: str, is_whole: bool) -> list[Item]:
        """As ``ControlReader.push``."""
        items = self.tags.push(text, is_whole)
        if (words := self.words) is not None:
            for item in items:
                if isinstance(item, str):
                    words.text += item
                else:
                    words.cut()
        return items

    def message(self, kind: str, status: int = _PARTIAL, **fields: Any) -> Send:
        return Send({"type": kind, "context_id": self.name, "done": status != _PARTIAL, "status_code": status, **fields})


class Cartesia(JsonProtocol):
    def __init__(
        self, max_contexts: int = 16, lexicons: Lexicons | None = None, max_text_chars: int = InterfaceLimits.max_text_chars
    ) -> None:
        """max_text_chars: of a context, tags included."""
        self._max_contexts = max_contexts
        self._max_text_chars = max_text_chars
        self._lexicons = lexicons or Lexicons()
        self._contexts: dict[str, _Context] = {}  # by speech
        self._dead: deque[str] = deque(maxlen=MAX_REMEMBERED)
        self._count = 0

    @property
    def is_idle(self) -> bool:
        return not self._contexts

    def _handle(self, values: dict[str, Any]) -> list[Action]:
        name = name_in(values, "context_id")
        if name is None:
            raise InvalidInputError("context_id must be a string of the client's choice; add it.")
        context = next((context for context in self._contexts.values() if context.name == name), None)
        if values.get("cancel"):
            return [] if context is None else self._kill(context)
        if name in self._dead:
            raise InvalidInputError("The context was cancelled or has failed; open another one under a new context_id.")
        text = text_in(values, "transcript") or ""
        if context is not None and context.is_ending:
            if text.strip():
                raise InvalidInputError("The context was ended by `continue` false; open another one for more text.")
            return []
        return self._speak(values, name, context, text)

    def _speak(self, values: dict[str, Any], name: str, context: _Context | None, text: str) -> list[Action]:
        goes_on, opening = bool(values.get("continue")), None
        if context is None:
            context, opening = self._open(values, name)
            if not text:
                return [] if goes_on else [context.message("done", _COMPLETE)]
        context.characters += len(text)
        if context.characters > self._max_text_chars:  # before the tags are looked for, which takes time
            raise InvalidInputError(f"The text is longer than {self._max_text_chars} characters; use several contexts.")
        items = context.read(text, is_whole=bool(values.get("flush")) or not goes_on)
        made: list[Action] = [Append(context.speech, item) for item in items]
        if opening is not None:  # only here: a wrong tag opens nothing
            made.insert(0, opening)
            self._contexts[context.speech] = context
            self._count += 1
        if values.get("flush"):
            made.append(Flush(context.speech))
        if not goes_on:
            context.is_ending = True
            made.append(End(context.speech))
        return made

    def _open(self, values: dict[str, Any], name: str) -> tuple[_Context, Open]:
        """Raises ``InvalidInputError``."""
        if len(self._contexts) >= self._max_contexts:
            raise InvalidInputError(f"{self._max_contexts} contexts are open on this socket; end some first.")
        audio_format = cartesia_format(object_in(values, "output_format"), is_raw=True)
        options, gain = cartesia_values(values)
        options |= cartesia_reading(values, self._lexicons)
        words = SpokenWords(pattern=WORD) if values.get("add_timestamps") else None
        context = _Context(name, f"{self._count + 1}", words, CartesiaTags(options))
        return context, Open(context.speech, cartesia_voice(values), audio_format, options, gain)

    def _refuse(self, values: dict[str, Any], error: InvalidInputError) -> list[Action]:
        """A message without a usable context ends the connection, others their context."""
        name = name_or_none(values, "context_id")
        if name is None:
            cancelled: list[Action] = [Cancel(speech) for speech in self._contexts]
            self._contexts.clear()
            return [*cancelled, _error(None, error), Close(POLICY_VIOLATION, "invalid message")]
        context = next((context for context in self._contexts.values() if context.name == name), None)
        killed = [] if context is None else self._kill(context)
        self._remember(name)
        return [*killed, _error(name, error)]

    def _kill(self, context: _Context) -> list[Action]:
        del self._contexts[context.speech]
        self._remember(context.name)
        return [Cancel(context.speech)]

    def _remember(self, name: str) -> None:
        if name not in self._dead:
            self._dead.append(name)

    def audio(self, speech: str, made: Made) -> Sequence[Action]:
        context = self._contexts[speech]
        sent: list[Action] = []
        if made.data:
            data = base64.b64encode(made.data).decode("ascii")
            sent.append(context.message("chunk", data=data, flush_id=context.flush_id))
        if context.words is not None:
            sent += _timestamps(context, context.words.push(made.position, made.duration_ms / 1000))
        return sent

    def flushed(self, speech: str) -> Sequence[Action]:
        context = self._contexts[speech]
        words = [] if context.words is None else _timestamps(context, context.words.settle())
        done = context.message("flush_done", flush_id=context.flush_id, flush_done=True)
        context.flush_id += 1
        return [*words, done]

    def finished(self, speech: str) -> Sequence[Action]:
        context = self._contexts.pop(speech)
        rest = [] if context.words is None else _timestamps(context, context.words.finish())
        return [*rest, context.message("done", _COMPLETE)]

    def failed(self, speech: str, error: BistreamError) -> Sequence[Action]:
        context = self._contexts.pop(speech)
        self._remember(context.name)
        return [_error(context.name, error)]


def cartesia_voice(values: dict[str, Any]) -> str:
    """``voice``: an id, or an object with one. Raises ``InvalidInputError``, also for a voice by embedding."""
    voice = values.get("voice")
    name = voice if isinstance(voice, str) else text_in(object_in(values, "voice"), "id")
    if not name:
        raise InvalidInputError("voice must have the id of a voice; list the voices with GET /v1/audio/voices.")
    return name


def cartesia_values(values: dict[str, Any]) -> tuple[Values, float]:
    """Of ``generation_config``: values for the core, and the gain; ``instructions`` is ours. Raises ``InvalidInputError``."""
    config = object_in(values, "generation_config")
    speed, volume = number_in(config, "speed"), number_in(config, "volume")
    given = instructed(text_in(config, "instructions"))
    if volume is not None and not 0.5 <= volume <= 2.0:
        raise InvalidInputError("volume must be a number from 0.5 to 2; correct it.")
    if speed is not None and speed != 1:
        given["speed"] = speed
    return given, 1.0 if volume is None else float(volume)


def cartesia_reading(values: dict[str, Any], lexicons: Lexicons) -> Values:
    """Of ``pronunciation_dict_id``, and of our own fields. Raises ``InvalidInputError``."""
    name = name_in(values, "pronunciation_dict_id")
    return lexicons.added_to(reading_in(values), [] if name is None else [name])


def _timestamps(context: _Context, words: list[SpokenWord]) -> list[Action]:
    if not words:
        return []
    times = {
        "words": [word.text for word in words],
        "start": [round(word.begin_s, 3) for word in words],
        "end": [round(word.end_s, 3) for word in words],
    }
    return [context.message("timestamps", word_timestamps=times, flush_id=context.flush_id)]


def _error(name: str | None, error: BistreamError) -> Send:
    code = error.code.lower()
    status = 429 if isinstance(error, BusyError) else 404 if isinstance(error, UnknownSpeakerError) else 503 if error.retryable else 400
    named = {} if name is None else {"context_id": name}
    title = code.replace("_", " ").capitalize()
    return Send(
        {"type": "error", **named, "status_code": status, "title": title, "message": error.sentence, "error_code": code, "done": True}
    )
