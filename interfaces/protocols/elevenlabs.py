"""ElevenLabs' ``stream-input`` (one text for each socket) and ``multi-stream-input`` (contexts beside each other). Pure.

Pieces go on as they come: ``chunk_length_schedule`` changes nothing. In ``multi-stream-input`` a ``close_context`` without an unanswered
flush, and a second one, is a cancel: that is how agents interrupt. ``close_socket`` waits for the contexts that end or were flushed. An
empty text keeps the socket alive there, and ends the stream in ``stream-input``. What still comes for a context that has failed is
dropped until its ``close_context``, so that the rest of a text is not spoken without its beginning.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bistream.errors import BistreamError, InvalidInputError
from interfaces.audio.formats import OutputFormat
from interfaces.core.lexicons import Lexicons
from interfaces.core.text import Break
from interfaces.core.values import Values
from interfaces.protocols.actions import POLICY_VIOLATION, Action, Append, Cancel, Close, End, Flush, Made, Open, Send
from interfaces.protocols.alignment import Alignment
from interfaces.protocols.messages import JsonProtocol, name_in, name_or_none, number_in, object_in, objects_in, parse_object, text_in
from interfaces.protocols.text_controls import LenientBreakTags

MAX_REMEMBERED = 64  # contexts that have failed
MAX_DICTIONARIES = 3


@dataclass(frozen=True)
class ElevenLabsOptions:
    """Of the address. has_sentences: ``auto_mode``, for which clients send whole sentences, some of them without a blank between."""

    voice: str
    format: OutputFormat
    is_multi: bool
    has_sentences: bool = False
    has_cumulative_alignment: bool = False
    max_contexts: int = 16
    values: Values = field(default_factory=dict)
    lexicons: Lexicons = field(default_factory=Lexicons)


@dataclass
class _Context:
    name: str | None  # as the client calls it; None: the only one
    speech: str
    alignment: Alignment
    tags: LenientBreakTags
    last: str = ""  # character of the text
    pending_flushes: int = 0
    is_ending: bool = False

    def read(self, text: str, is_whole: bool) -> list[Action]:
        """What is spoken of it. is_whole: as of ``ControlReader.push``."""
        items = self.tags.push(text, is_whole)
        for item in items:
            if isinstance(item, str):
                self.alignment.append(item)
            elif isinstance(item, Break):
                self.alignment.pause(item.silence_ms)
        return [Append(self.speech, item) for item in items]

    def end(self) -> list[Action]:
        self.is_ending = True
        return [*self.read("", is_whole=True), End(self.speech)]

    def message(self, **fields: Any) -> Send:
        return Send(fields if self.name is None else {**fields, "contextId": self.name})


def key_headers(message: str | bytes) -> dict[str, str]:
    """The API key of a first message, as the headers that would have carried it; empty where it has none."""
    try:
        values = parse_object(message)
    except InvalidInputError:
        return {}
    key, authorization = values.get("xi_api_key") or values.get("xi-api-key"), values.get("authorization")
    if isinstance(authorization, str) and authorization.isascii():
        return {"authorization": authorization if " " in authorization else f"Bearer {authorization}"}
    return {"xi-api-key": key} if isinstance(key, str) and key.isascii() else {}


def dictionaries_in(values: dict[str, Any]) -> list[str]:
    """The ids of ``pronunciation_dictionary_locators``, of which the first go first; each has one version here, whichever is named.
    Raises ``InvalidInputError``."""
    ids = [name_in(one, "pronunciation_dictionary_id") for one in objects_in(values, "pronunciation_dictionary_locators")]
    names = [name for name in ids if name is not None]
    if len(names) < len(ids) or len(names) > MAX_DICTIONARIES:
        sentence = f"must be up to {MAX_DICTIONARIES} objects, each with a pronunciation_dictionary_id; correct it."
        raise InvalidInputError(f"pronunciation_dictionary_locators {sentence}")
    return names


def refusal(error: BistreamError) -> dict[str, Any]:
    """The SDK raises for a close beside ``message``, the agents' plugins for ``error``."""
    return {"message": error.sentence, "error": error.sentence, "code": POLICY_VIOLATION}


class ElevenLabs(JsonProtocol):
    def __init__(self, options: ElevenLabsOptions) -> None:
        self._options = options
        self._contexts: dict[str, _Context] = {}  # by speech
        self._failed: deque[str | None] = deque(maxlen=MAX_REMEMBERED)
        self._count = 0
        self._is_closing = False  # the socket, once the contexts that end have ended

    @property
    def is_idle(self) -> bool:
        return not self._contexts

    def _handle(self, values: dict[str, Any]) -> list[Action]:
        context_id = name_in(values, "context_id")
        if self._is_closing:
            return []
        return self._multi(values, context_id) if self._options.is_multi else self._single(values)

    def _refuse(self, values: dict[str, Any], error: InvalidInputError) -> list[Action]:
        context_id = name_or_none(values, "context_id")
        name = {} if context_id is None else {"contextId": context_id}
        cancelled: list[Action] = [Cancel(speech) for speech in self._contexts]
        self._contexts.clear()
        return [Send({**refusal(error), **name}), *cancelled, Close(POLICY_VIOLATION, "invalid message")]

    def _single(self, values: dict[str, Any]) -> list[Action]:
        text = text_in(values, "text")
        context = next(iter(self._contexts.values()), None)
        if context is not None and context.is_ending:
            return []
        if text == "" and not values.get("flush"):
            if context is None:
                return [Send({"isFinal": True}), Close()]
            return context.end()
        return self._append(values, text or "", None, context)

    def _multi(self, values: dict[str, Any], context_id: str | None) -> list[Action]:
        if values.get("close_socket"):
            self._is_closing = True
            left = [context for context in self._contexts.values() if not context.is_ending]
            return [action for context in left for action in self._end_or_cancel(context)] if self._contexts else [Close()]
        name = context_id or "default"
        context = self._live(name)
        text = text_in(values, "text") or ""
        if name in self._failed:
            if values.get("close_context"):
                self._failed.remove(name)
            return []
        made: list[Action] = []
        if context is None or not context.is_ending:
            if text or (context is not None and values.get("flush")):
                made = self._append(values, text, name, context)
                context = self._live(name)
        if values.get("close_context") and context is not None:
            made += self._end_or_cancel(context)
        return made

    def _live(self, name: str) -> _Context | None:
        return next((context for context in self._contexts.values() if context.name == name), None)

    def _append(self, values: dict[str, Any], text: str, name: str | None, context: _Context | None) -> list[Action]:
        made: list[Action] = []
        if context is None:
            if len(self._contexts) >= self._options.max_contexts:
                raise InvalidInputError(f"{self._options.max_contexts} contexts are open on this socket; close some first.")
            options = self._values(values)
            self._count += 1
            context = _Context(name, f"{self._count}", Alignment(self._options.has_cumulative_alignment), LenientBreakTags(options))
            self._contexts[context.speech] = context
            made.append(Open(context.speech, self._options.voice, self._options.format, options, continues=True))
            if not text.strip():
                text = ""  # the blank that opens a context is no text
        if text:
            if self._options.has_sentences and context.last in tuple(".!?") and text[0].isupper():
                text = f" {text}"
            context.last = text[-1]
        made += context.read(text, is_whole=bool(values.get("flush")))
        if values.get("flush"):
            context.pending_flushes += 1
            made.append(Flush(context.speech))
        return made

    def _values(self, values: dict[str, Any]) -> Values:
        speed = number_in(object_in(values, "voice_settings"), "speed")
        given = self._options.lexicons.added_to(self._options.values, dictionaries_in(values))
        return dict(given) if speed is None else {**given, "speed": speed}

    def _end_or_cancel(self, context: _Context) -> list[Action]:
        """A context with an unanswered flush speaks to its end, unless it was told to end before."""
        if context.pending_flushes and not context.is_ending:
            return context.end()
        del self._contexts[context.speech]
        return [Cancel(context.speech), context.message(isFinal=True), *self._close_when_idle()]

    def _close_when_idle(self) -> list[Action]:
        return [Close()] if self._is_closing and not self._contexts else []

    def audio(self, speech: str, made: Made) -> Sequence[Action]:
        context = self._contexts[speech]
        if not made.data:
            context.alignment.hold(made.duration_ms)
            return []
        alignment = context.alignment.next(made.duration_ms, made.position)
        data = base64.b64encode(made.data).decode("ascii")
        return [context.message(audio=data, isFinal=None, alignment=alignment, normalizedAlignment=alignment)]

    def flushed(self, speech: str) -> Sequence[Action]:
        self._contexts[speech].pending_flushes -= 1
        return []

    def finished(self, speech: str) -> Sequence[Action]:
        context = self._contexts.pop(speech)
        end: list[Action] = self._close_when_idle() if self._options.is_multi else [Close()]
        return [context.message(isFinal=True), *end]

    def failed(self, speech: str, error: BistreamError) -> Sequence[Action]:
        context = self._contexts.pop(speech)
        self._failed.append(context.name)
        if not self._options.is_multi:
            return [Send(refusal(error)), Close(POLICY_VIOLATION, error.code.lower())]
        return [context.message(**refusal(error)), context.message(isFinal=True), *self._close_when_idle()]
