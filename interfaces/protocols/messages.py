"""Protocols whose messages are JSON objects: how one is read, and its fields. Pure."""

from __future__ import annotations

import abc
import json
from collections.abc import Sequence
from typing import Any

from bistream.contract.lexicon import written_lexicon
from bistream.errors import InvalidInputError
from interfaces.core.values import Values
from interfaces.protocols.actions import Action

MAX_JSON_DEPTH = 16
MAX_NAME_CHARS = 128
READING = ("text_normalization", "text_type", "lexicon")
_FLAGS = {True: True, False: False, "true": True, "false": False}  # in JSON, and in an address


class JsonProtocol(abc.ABC):
    """The part of ``SocketProtocol`` that such protocols share: a message that is wrong is answered in the protocol's own form."""

    def opened(self) -> Sequence[Action]:
        return []

    def received(self, message: str | bytes) -> Sequence[Action]:
        values: dict[str, Any] = {}
        try:
            values = parse_object(message)
            return self._handle(values)
        except InvalidInputError as error:
            return self._refuse(values, error)

    def flushed(self, speech: str) -> Sequence[Action]:
        return []

    @abc.abstractmethod
    def _handle(self, values: dict[str, Any]) -> list[Action]:
        """Raises ``InvalidInputError``; nothing has changed then."""

    @abc.abstractmethod
    def _refuse(self, values: dict[str, Any], error: InvalidInputError) -> list[Action]:
        """The answer to a wrong message. values: empty where it is no object."""


def parse_object(message: str | bytes) -> dict[str, Any]:
    """Raises ``InvalidInputError`` for anything but a JSON object of modest depth."""
    if isinstance(message, bytes):
        raise InvalidInputError("The message is binary; send JSON as text.")
    try:
        value = json.loads(message)
    except (ValueError, RecursionError):
        raise InvalidInputError("The message is not JSON; correct it.") from None
    if not isinstance(value, dict) or _depth(value) > MAX_JSON_DEPTH:
        raise InvalidInputError("The message must be a JSON object; correct it.")
    return value


def text_in(message: dict[str, Any], name: str) -> str | None:
    """A string or nothing. Raises ``InvalidInputError`` for another type."""
    value = message.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidInputError(f"{name} must be a string; correct it.")
    return value


def name_in(message: dict[str, Any], name: str) -> str | None:
    """As ``text_in``, of at most ``MAX_NAME_CHARS`` characters; an empty one is none."""
    value = text_in(message, name)
    if value is not None and len(value) > MAX_NAME_CHARS:
        raise InvalidInputError(f"{name} has more than {MAX_NAME_CHARS} characters; choose a shorter one.")
    return value or None


def name_or_none(message: Any, name: str) -> str | None:
    """As ``name_in``, of a message that may be wrong: None where it has no such name."""
    value = message.get(name) if isinstance(message, dict) else None
    return value if isinstance(value, str) and 1 <= len(value) <= MAX_NAME_CHARS else None


def number_in(message: dict[str, Any], name: str) -> float | None:
    """A finite number or nothing. Raises ``InvalidInputError``."""
    value = message.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e15 < value < 1e15:
        raise InvalidInputError(f"{name} must be a number; correct it.")
    return value


def object_in(message: dict[str, Any], name: str) -> dict[str, Any]:
    """An object; nothing is an empty one. Raises ``InvalidInputError``."""
    value = message.get(name)
    if value is not None and not isinstance(value, dict):
        raise InvalidInputError(f"{name} must be an object; correct it.")
    return value or {}


def objects_in(message: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A list of objects; nothing is an empty one. Raises ``InvalidInputError``."""
    value = message.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise InvalidInputError(f"{name} must be a list of objects; correct it.")
    return value


def reading_in(message: dict[str, Any]) -> Values:
    """Our own fields for how a text is read; a lexicon may be an object. And whether its audio gets the watermark.

    Raises ``InvalidInputError``.
    """
    lexicon, is_marked = message.get("lexicon"), message.get("is_marked")
    written = {**message, "lexicon": written_lexicon(lexicon) if isinstance(lexicon, dict) else lexicon}
    if is_marked not in (None, *_FLAGS):
        raise InvalidInputError("is_marked must be true or false; correct it.")
    read: Values = {name: value for name in READING if (value := text_in(written, name)) is not None}
    return {**read, "is_marked": True} if _FLAGS.get(is_marked) else read


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level and depth <= MAX_JSON_DEPTH:
        depth += 1
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())
            if isinstance(inner, dict | list)
        ]
    return depth
