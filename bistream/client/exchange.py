"""Requests and responses of one session without any input or output: what to send, and what an answer means. Not thread-safe.

``client.py`` drives it with a thread, ``asyncio_client.py`` with an event loop.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bistream.client.known_voices import KnownVoices
from bistream.contract.audio import SILENCE_S
from bistream.contract.fields import SESSION_SECRET_PARAMETER
from bistream.errors import CancelledError, UnknownSessionError, UnknownVoiceError

_RECORDING = ("reference_wav", "reference_wav_len", "reference_text")


@dataclass(frozen=True)
class Chunk:
    """waveform: float32 [N], mono at the client's ``sample_rate``; arrived_at: ``time.monotonic()`` on arrival.

    At the end of the chunk, in characters of the text: text_consumed is certainly spoken; text_position estimates where the voice is.
    """

    waveform: NDArray[np.float32]
    sequence_number: int
    text_consumed: int
    arrived_at: float
    text_position: int | None = None  # of a server that tells


def silent_chunk(text_consumed: int, sample_rate: int, duration_s: float = SILENCE_S) -> Chunk:
    """In place of audio of a server, for a text without anything to speak, or for a break."""
    return Chunk(np.zeros(round(duration_s * sample_rate), np.float32), 0, text_consumed, 0.0)


@dataclass(frozen=True)
class Heard:
    """The text that a listener had heard when a cancel arrived, who had played without a pause since the first chunk: as in ``Chunk``."""

    text_consumed: int
    text_position: int


@dataclass(frozen=True)
class Request:
    """values: inputs by their names in the wire contract."""

    values: dict[str, Any]
    request_id: str
    parameters: dict[str, str]


@dataclass
class _Attempt:
    """A session that was started with a hash, until the server has shown whether it knows the voice. start: with the recording."""

    start: dict[str, Any]
    pieces: list[dict[str, Any]] = field(default_factory=list)  # sent since


class SessionExchange:
    """is_over: the session has ended, ``failure`` says why (None: normally). heard: the answer to a cancel."""

    def __init__(self, session_id: str, known: KnownVoices | None, voice_hash: str | None, secret: str) -> None:
        """voice_hash: of the recording that the start carries. secret: of the client, whose later sessions may continue this one."""
        self.session_id = session_id
        self.started_at = self.last_event_at = time.monotonic()
        self.text_ended_at: float | None = None
        self.is_over = False
        self.failure: BaseException | None = None
        self.heard: Heard | None = None
        self._known = known
        self._voice_hash = voice_hash
        self._attempt: _Attempt | None = None
        self._request_count = 0
        self._stale_pieces = 0  # of a refused start, not answered yet
        # Whoever guesses the id cannot reach this session; the server keeps it apart from one with another secret.
        self._secret = secret
        self._start_request_id = f"{session_id}.0"

    def start(self, values: dict[str, Any]) -> Request:
        """values: of the start, with the recording; its hash goes instead where the server should know the voice."""
        if self._known is not None and self._voice_hash is not None and self._voice_hash in self._known:
            self._attempt = _Attempt(values)
            values = {**values, **dict.fromkeys(_RECORDING), "reference_hash": self._voice_hash}
        return self._to_request(values)

    def later(self, values: dict[str, Any]) -> Request:
        """A piece or a cancel. Raises the session's error, ``CancelledError`` if it ended normally."""
        if self.failure is not None:
            raise self.failure
        if self.is_over:
            raise CancelledError("The session is over; start another one for more text.", self.session_id)
        if self._attempt is not None:
            self._attempt.pieces.append(values)
        return self._to_request(values)

    def _to_request(self, values: dict[str, Any]) -> Request:
        self.last_event_at = time.monotonic()
        if values.get("is_end"):
            self.text_ended_at = self.last_event_at
        given = {name: value for name, value in {**values, "session_id": self.session_id}.items() if value is not None}
        self._request_count += 1
        return Request(given, f"{self.session_id}.{self._request_count - 1}", {SESSION_SECRET_PARAMETER: self._secret})

    def on_result(self, result: Any) -> Chunk | None:
        """result: ``tritonclient.grpc.InferResult``. Returns its audio; the last answer of the start ends the session."""
        self.last_event_at = time.monotonic()
        response = result.get_response()
        if response.id != self._start_request_id:
            self._take_answer(result)
            return None
        chunk = None
        if (waveform := result.as_numpy("waveform")) is not None and waveform.size:
            self._voice_is_known()
            number, consumed = _number(result, "sequence_number") or 0, _number(result, "text_consumed") or 0
            chunk = Chunk(waveform.reshape(-1), number, consumed, self.last_event_at, _number(result, "text_position"))
        if response.parameters["triton_final_response"].bool_param:
            self.end(None)
        return chunk

    def _take_answer(self, result: Any) -> None:
        """The acknowledgement of a piece, which is empty, or the answer to a cancel."""
        consumed, position = _number(result, "text_consumed"), _number(result, "text_position")
        if consumed is not None and position is not None:
            self.heard = Heard(consumed, position)

    def on_error(self, error: BaseException) -> list[Request]:
        """The requests to send now: where the server does not know the hash, the start with the recording and all the text so far."""
        self.last_event_at = time.monotonic()
        if self._stale_pieces and isinstance(error, UnknownVoiceError | UnknownSessionError):
            self._stale_pieces -= 1  # of a piece that was sent after the refused start; tritonclient drops the id of its request
            return []
        attempt, self._attempt = self._attempt, None
        if attempt is None or not isinstance(error, UnknownVoiceError):
            self.end(error)
            return []
        assert self._known is not None and self._voice_hash is not None, "a hash was sent"
        self._known.refused(self._voice_hash)
        self._stale_pieces = len(attempt.pieces)
        self._secret = uuid.uuid4().hex
        self._start_request_id = f"{self.session_id}.{self._request_count}"
        return [self._to_request(values) for values in (attempt.start, *attempt.pieces)]

    def _voice_is_known(self) -> None:
        """Audio has come, so the server has the voice."""
        if self._voice_hash is not None and self._known is not None:
            self._known.accepted(self._voice_hash, was_hash=self._attempt is not None)
        self._voice_hash = self._attempt = None

    def end(self, error: BaseException | None) -> bool:
        """The first end counts: the final response follows an error. Returns whether this was it."""
        if self.is_over:
            return False
        self.failure, self.is_over = error, True
        return True


def _number(result: Any, name: str) -> int | None:
    """A tensor of one number; None: it is not there."""
    array = result.as_numpy(name)
    return None if array is None or not array.size else int(array.reshape(-1)[0])
