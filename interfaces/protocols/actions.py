"""What passes between a protocol and whoever runs it: the socket's messages and the utterances' events in, actions out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bistream.errors import BistreamError
from interfaces.audio.formats import OutputFormat
from interfaces.core.text import Item
from interfaces.core.values import Values

POLICY_VIOLATION, INTERNAL_ERROR = 1008, 1011  # codes of a WebSocket's close


@dataclass(frozen=True)
class Open:
    """speech: a name of the protocol's choice, never used twice. values: as ``SpeechOptions``. gain: factor of the samples. continues: the
    utterance that was spoken last on this socket, which belongs to the same conversation."""

    speech: str
    voice: str
    format: OutputFormat
    values: Values = field(default_factory=dict)
    gain: float = 1.0
    continues: bool = False


@dataclass(frozen=True)
class Append:
    speech: str
    item: Item


@dataclass(frozen=True)
class Flush:
    """``flushed`` follows behind the audio."""

    speech: str


@dataclass(frozen=True)
class End:
    """``finished`` follows behind the audio."""

    speech: str


@dataclass(frozen=True)
class Cancel:
    """Nothing follows."""

    speech: str


@dataclass(frozen=True)
class Send:
    """message: an object for a text message, bytes for a binary one."""

    message: dict[str, Any] | bytes


@dataclass(frozen=True)
class Close:
    code: int = 1000
    reason: str = ""


Action = Open | Append | Flush | End | Cancel | Send | Close


@dataclass(frozen=True)
class Made:
    """Encoded audio. duration_ms: of the sound that went into the encoder for it; text_consumed: characters of the utterance that are
    certainly spoken when it has been played; text_position: those up to which the voice is then, as an estimate (None: not known)."""

    data: bytes
    duration_ms: float
    text_consumed: int
    text_position: int | None = None

    @property
    def position(self) -> int:
        return self.text_consumed if self.text_position is None else self.text_position


class SocketProtocol(Protocol):
    """One connection. After ``failed`` the utterance is gone."""

    def opened(self) -> Sequence[Action]: ...

    def received(self, message: str | bytes) -> Sequence[Action]: ...

    def audio(self, speech: str, made: Made) -> Sequence[Action]: ...

    def flushed(self, speech: str) -> Sequence[Action]: ...

    def finished(self, speech: str) -> Sequence[Action]: ...

    def failed(self, speech: str, error: BistreamError) -> Sequence[Action]: ...

    @property
    def is_idle(self) -> bool:
        """No utterance is under way."""
        ...
