"""Deepgram's ``/v1/speak`` (Aura): text in pieces in, binary audio out. Pure.

Clients take ``Flushed`` as the end of a turn, so it comes behind the turn's last audio, also where a flush has no text; a turn that was
cleared gets none, because it would end the one after it. ``Close`` waits for the turns that were flushed; a client that wants none of them
sends ``Clear``, or closes the socket.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from bistream.errors import BistreamError, InvalidInputError
from interfaces.protocols.actions import INTERNAL_ERROR, POLICY_VIOLATION, Action, Close, End, Made, Open, Send
from interfaces.protocols.deepgram import DeepgramOptions
from interfaces.protocols.messages import JsonProtocol, text_in
from interfaces.protocols.utterance_queue import PendingUtterance, UtteranceQueue


class DeepgramV1(JsonProtocol):
    def __init__(self, options: DeepgramOptions) -> None:
        self._options = options
        self._turns = UtteranceQueue(self._make, self._begin, lambda turn: [End(turn.speech)], options.max_text_chars)
        self._turn_count = 0
        self._flushed_count = 0
        self._cleared_count = 0

    @property
    def is_idle(self) -> bool:
        return self._turns.active is None

    def opened(self) -> Sequence[Action]:
        name = self._options.voice or "default"
        request_id, model_uuid = str(uuid.uuid4()), str(uuid.uuid5(uuid.NAMESPACE_OID, name))
        metadata = {"request_id": request_id, "model_name": name, "model_version": "bistream", "model_uuid": model_uuid}
        return [Send({"type": "Metadata", **metadata})]

    def _handle(self, values: dict[str, Any]) -> list[Action]:
        match text_in(values, "type"):
            case "Speak":
                return self._turns.speak(values)
            case "Flush":
                return [self._flushed()] if self._turns.newest is None else self._turns.flush()
            case "Clear":
                self._cleared_count += 1
                return [*self._turns.drop(), Send({"type": "Cleared", "sequence_id": self._cleared_count - 1}), *self._end()]
            case "Close":
                return [*self._turns.close(), *self._end()]
        raise InvalidInputError("type must be Speak, Flush, Clear or Close; correct it.")

    def _refuse(self, values: dict[str, Any], error: InvalidInputError) -> list[Action]:
        return [*self._turns.drop(), *_over(error, "DATA-0000", POLICY_VIOLATION)]

    def _make(self) -> PendingUtterance:
        self._turn_count += 1
        return PendingUtterance(f"{self._turn_count}")

    def _begin(self, turn: PendingUtterance) -> list[Action]:
        values = self._options.values | ({} if self._options.speed == 1.0 else {"speed": self._options.speed})
        return [Open(turn.speech, self._options.voice, self._options.format, values, continues=True)]

    def audio(self, speech: str, made: Made) -> Sequence[Action]:
        return [Send(made.data)] if made.data else []

    def finished(self, speech: str) -> Sequence[Action]:
        self._turns.speaking(speech)
        return [self._flushed(), *self._turns.next(), *self._end()]

    def failed(self, speech: str, error: BistreamError) -> Sequence[Action]:
        """The connection ends, so that the client connects again and sends its text anew."""
        self._turns.drop()
        return _over(error, "NET-0000", INTERNAL_ERROR) if error.retryable else _over(error, "DATA-0000", POLICY_VIOLATION)

    def _end(self) -> list[Action]:
        return [Close()] if self._turns.are_over else []

    def _flushed(self) -> Send:
        self._flushed_count += 1
        return Send({"type": "Flushed", "sequence_id": self._flushed_count - 1})


def _over(error: BistreamError, code: str, close: int) -> list[Action]:
    """The protocol has no message for errors: its warning says what is wrong, and the close frame that it was one."""
    return [Send({"type": "Warning", "code": code, "description": error.sentence}), Close(close, code)]
