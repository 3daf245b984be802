"""A session with the server: push text as it comes, iterate over the audio as it arrives.

    client = BistreamClient("localhost:8001")
    with client.start(reference_wav=samples_16k, reference_text="What is said in it.") as session:
        session.push_text("Hello ")          # from any thread, while another one plays
        session.end_text("world.")
        for chunk in session:
            play(chunk.waveform)             # float32, 24 kHz

Errors of the server are raised as classes of ``bistream.errors``; an unreachable or lost server raises ``ConnectionError``.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from bistream.errors import BistreamError, CancelledError
from bistream.wire import COSYVOICE2_BISTREAM, TensorSpec, parse_error

_NUMPY_TYPES: dict[str, type] = {"BYTES": np.object_, "BOOL": np.bool_, "INT32": np.int32, "INT64": np.int64, "FP32": np.float32}
_SPECS: dict[str, TensorSpec] = {spec.name: spec for spec in COSYVOICE2_BISTREAM.inputs}
_CLOSED = "The connection was closed."


@dataclass(frozen=True)
class Chunk:
    """waveform: float32 [N], 24 kHz mono; arrived_at: ``time.monotonic()`` on arrival."""

    waveform: NDArray[np.float32]
    sequence_number: int
    text_consumed: int
    arrived_at: float


class BistreamClient:
    """The address of a server. Holds no connection: every session has its own gRPC stream, which ends with it."""

    def __init__(
        self, address: str = "localhost:8001", model_name: str = COSYVOICE2_BISTREAM.name, silence_timeout_s: float = 60.0
    ) -> None:
        """silence_timeout_s: how long a session may go without sending or receiving before it counts as lost."""
        self.address = address
        self.model_name = model_name
        self.silence_timeout_s = silence_timeout_s

    def start(
        self,
        *,
        reference_wav: NDArray[np.float32] | None = None,
        reference_text: str | None = None,
        speaker_id: str | None = None,
        text: str | bytes = b"",
        is_end: bool = False,
        session_id: str | None = None,
        **options: int | float,
    ) -> ClientSession:
        """Open a session. A voice is a recording (float32 [N], 16 kHz mono) with its transcript, or the id of a registered one.

        text, is_end: with ``is_end`` this is the whole text and the server may use its one-shot layout. options: ``seed``,
        ``temperature``, ``top_k``, ``top_p`` and, with ``is_end``, ``speed``.
        """
        values: dict[str, Any] = {"reference_text": reference_text, "speaker_id": speaker_id, **options}
        if reference_wav is not None:
            values.update(reference_wav=reference_wav, reference_wav_len=len(reference_wav))
        return ClientSession(self, session_id or uuid.uuid4().hex, text, is_end, values)


class ClientSession:
    """One session and its gRPC stream. Use it as a context manager, or call ``close``.

    ``push_text``, ``end_text`` and ``cancel`` may be called from any thread; iterate in one. Any error ends the session for the client.
    """

    def __init__(self, client: BistreamClient, session_id: str, text: str | bytes, is_end: bool, values: dict[str, Any]) -> None:
        self.session_id = session_id
        self.started_at = time.monotonic()
        self.text_ended_at: float | None = None
        self._client = client
        self._events: queue.SimpleQueue[Chunk | BaseException | None] = queue.SimpleQueue()  # None: the session has ended normally
        self._lock = threading.Lock()  # tritonclient's stream is not thread-safe
        self._over = False
        self._failure: BaseException | None = None
        self._closed = False
        self._request_count = 0
        self._start_request_id = f"{session_id}.0"
        self._last_event_at = self.started_at
        self._connection = triton.InferenceServerClient(client.address)
        try:
            self._connection.start_stream(callback=self._on_response)
            self._send({**values, "target_text": _to_bytes(text), "is_start": True, "is_end": is_end})
        except BaseException:
            self.close()
            raise

    # Outgoing

    def push_text(self, piece: str | bytes) -> None:
        """Send text, cut anywhere (bytes: even inside a character). Raises the session's error, ``CancelledError`` if it ended normally."""
        self._send({"target_text": _to_bytes(piece), "is_start": False, "is_end": False})

    def end_text(self, piece: str | bytes = b"") -> None:
        """Send the last piece; the rest is spoken and the iteration ends."""
        self._send({"target_text": _to_bytes(piece), "is_start": False, "is_end": True})

    def cancel(self) -> None:
        """Stop speaking (barge-in). The iteration ends with ``CancelledError``; audio that has arrived can still be iterated."""
        self._send({"is_cancel": True})

    def _send(self, values: dict[str, Any]) -> None:
        inputs = [infer_input(name, value) for name, value in {**values, "session_id": self.session_id}.items() if value is not None]
        with self._lock:
            if self._failure is not None and not self._closed:
                raise self._failure
            if self._over or self._closed:
                raise CancelledError("The session is over; start another one for more text.", self.session_id)
            if values.get("is_end"):
                self.text_ended_at = time.monotonic()
            request_id = f"{self.session_id}.{self._request_count}"
            self._request_count += 1
            self._last_event_at = time.monotonic()
            try:
                self._connection.async_stream_infer(
                    self._client.model_name, inputs, request_id=request_id, enable_empty_final_response=True
                )
            except InferenceServerException as error:
                raise _to_error(error, self._client.address) from None

    # Incoming

    def _on_response(self, result: Any, error: InferenceServerException | None) -> None:
        """Called in tritonclient's thread."""
        self._last_event_at = time.monotonic()
        if error is not None:
            self._end(_to_error(error, self._client.address))
            return
        response = result.get_response()
        if response.id != self._start_request_id:
            return  # the acknowledgement of a piece
        if (waveform := result.as_numpy("waveform")) is not None and waveform.size:
            self._events.put(
                Chunk(
                    waveform.reshape(-1),
                    int(result.as_numpy("sequence_number").reshape(-1)[0]),
                    int(result.as_numpy("text_consumed").reshape(-1)[0]),
                    self._last_event_at,
                )
            )
        if response.parameters["triton_final_response"].bool_param:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        self._failure = error
        self._over = True
        self._events.put(error)

    def __iter__(self) -> Iterator[Chunk]:
        """Audio as it arrives, until the session ends. Raises ``BistreamError``, ``ConnectionError`` and ``TimeoutError``."""
        while (event := self._next_event()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event

    def _next_event(self) -> Chunk | BaseException | None:
        while True:
            quiet_s = time.monotonic() - self._last_event_at
            try:
                return self._events.get(timeout=max(0.01, self._client.silence_timeout_s - quiet_s))
            except queue.Empty:
                if time.monotonic() - self._last_event_at >= self._client.silence_timeout_s:
                    raise TimeoutError(f"No response from {self._client.address} for {self._client.silence_timeout_s:g} s.") from None

    # End

    def close(self) -> None:
        """Close the stream, which cancels a session that is not over. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._connection.stop_stream(cancel_requests=not self._over)
        self._connection.close()
        self._events.put(CancelledError(_CLOSED, self.session_id))

    def __enter__(self) -> ClientSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def infer_input(name: str, value: Any) -> triton.InferInput:
    """A value as the tensor of the wire contract: [1, 1], or [1, N] for an array."""
    spec = _SPECS[name]
    if spec.datatype == "BYTES":
        array = np.array([[_to_bytes(value)]], dtype=np.object_)
    else:
        array = np.ascontiguousarray(value, dtype=_NUMPY_TYPES[spec.datatype]).reshape(1, -1)
    tensor = triton.InferInput(name, list(array.shape), spec.datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def _to_bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8") if isinstance(text, str) else text


def _to_error(error: InferenceServerException, address: str) -> BaseException:
    """A gRPC status means that the stream is gone; anything else is an error of the model."""
    if error.status() is not None:
        return ConnectionError(f"The connection to {address} failed: {error.message()}; check that the server is running.")
    return parse_error(error.message() or "The server gave no reason.")


__all__ = ["BistreamClient", "BistreamError", "Chunk", "ClientSession", "infer_input"]
