"""Runs a protocol's state machine without sockets or audio: ``Player`` keeps the utterances that it opened and checks its actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bistream.errors import BistreamError
from interfaces.core.text import Item
from interfaces.protocols.actions import Action, Append, Cancel, Close, End, Flush, Made, Open, Send, SocketProtocol


class Player:
    """texts: by utterance, of those that live. items: of all of them. spoken: texts up to flushes that were answered, and to ends. sent,
    closed: to the client."""

    def __init__(self, protocol: SocketProtocol) -> None:
        self.protocol = protocol
        self.opened: list[Open] = []
        self.texts: dict[str, str] = {}
        self.items: list[Item] = []
        self.ended: set[str] = set()
        self.flushes: dict[str, int] = {}  # not answered
        self._flush_texts: dict[str, list[str]] = {}  # up to these
        self.spoken: list[str] = []
        self.cancelled: list[str] = []
        self.sent: list[Any] = []
        self.closed: Close | None = None
        self._do(protocol.opened())

    def receive(self, message: str | bytes) -> list[Any]:
        """What it sends for it."""
        if self.closed is not None:
            return []
        return self._do(self.protocol.received(message))

    def audio(self, speech: str, made: Made) -> list[Any]:
        return self._do(self.protocol.audio(speech, made))

    def flushed(self, speech: str) -> list[Any]:
        self.flushes[speech] -= 1
        self.spoken.append(self._flush_texts[speech].pop(0))
        return self._do(self.protocol.flushed(speech))

    def finished(self, speech: str) -> list[Any]:
        self.spoken.append(self.texts.pop(speech))
        return self._do(self.protocol.finished(speech))

    def failed(self, speech: str, error: BistreamError) -> list[Any]:
        del self.texts[speech]
        return self._do(self.protocol.failed(speech, error))

    def _do(self, actions: Sequence[Action]) -> list[Any]:
        before = len(self.sent)
        for action in actions:
            assert self.closed is None, f"{action} after the end"
            match action:
                case Send(message):
                    self.sent.append(message)
                case Close():
                    self.closed = action
                case Open(speech):
                    assert speech not in [one.speech for one in self.opened]
                    self.opened.append(action)
                    self.texts[speech] = ""
                    self.flushes[speech], self._flush_texts[speech] = 0, []
                case Append(speech, str(text)):
                    assert text and speech not in self.ended
                    self.texts[speech] += text
                    self.items.append(text)
                case Append(speech, control):
                    assert speech in self.texts and speech not in self.ended
                    self.items.append(control)
                case Flush(speech):
                    assert speech in self.texts and speech not in self.ended
                    self.flushes[speech] += 1
                    self._flush_texts[speech].append(self.texts[speech])
                case End(speech):
                    assert speech in self.texts and speech not in self.ended
                    self.ended.add(speech)
                case Cancel(speech):
                    del self.texts[speech]
                    self.cancelled.append(speech)
        assert self.protocol.is_idle == (not self.texts)
        return self.sent[before:]
