"""A session with the server: push text as it comes, iterate over the audio as it arrives.

    client = BistreamClient("localhost:8001")
    with client.start(reference_wav=samples_16k, reference_text="What is said in it.") as session:
        session.push_text("Hello ")          # from any thread, while another one plays
        session.end_text("world.")
        for chunk in session:
            play(chunk.waveform)             # float32, at client.sample_rate

The client sends the hash of a recording that the server has heard; where the server has forgotten it, the recording goes after all, unseen.
Errors of the server are raised as classes of ``bistream.errors``; an unreachable or lost server raises ``ConnectionError``.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from bistream.client.connection import INSECURE, ClientSecurity
from bistream.client.exchange import Chunk, Heard, Request, SessionExchange
from bistream.client.inquiry import Inquiry, parameters_of
from bistream.client.known_voices import KnownVoices
from bistream.client.opening import SessionStarts, later_piece
from bistream.client.translation import infer_input, stream_error
from bistream.contract.audio import sample_rate_of
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.errors import CancelledError

_CLOSED = "The connection was closed."
_STREAM_FAILED = "no longer in valid state"  # in the words of tritonclient


class BistreamClient(SessionStarts["ClientSession"]):
    """The address of a server. Every session has its own gRPC stream, which ends with it."""

    def __init__(
        self,
        address: str = "localhost:8001",
        model_name: str = COSYVOICE2_BISTREAM.name,
        silence_timeout_s: float = 60.0,
        security: ClientSecurity = INSECURE,
        sends_hashes: bool = True,
        keeps_connections: bool = False,
    ) -> None:
        """silence_timeout_s: how long a session may go without sending or receiving before it counts as lost. security: API key and
        TLS. sends_hashes: false sends the recording with every session. keeps_connections: a session begins on the connection of one that
        is over, where there is one, which saves the time to connect; ``close`` ends those that are left. Else each makes its own.
        """
        self.address = address
        self.model_name = model_name
        self.silence_timeout_s = silence_timeout_s
        self.security = security
        self.known_voices = KnownVoices() if sends_hashes else None
        self._keeps_connections = keeps_connections
        self._lock = threading.Lock()
        self._sample_rate: int | None = None
        self._idle: list[triton.InferenceServerClient] = []

    @property
    def sample_rate(self) -> int:
        """Samples per second of the server's audio, which it is asked once. Raises ``BistreamError`` and ``ConnectionError``."""
        if self._sample_rate is None:
            inquiry = Inquiry(self.address, self.security, self.silence_timeout_s)
            self._sample_rate = sample_rate_of(parameters_of(inquiry.config(self.model_name)))
        return self._sample_rate

    def close(self) -> None:
        """Close the connections that are kept; sessions that run go on. Idempotent."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connect(self) -> triton.InferenceServerClient:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return triton.InferenceServerClient(self.address, **self.security.grpc_options())

    def _disconnect(self, connection: triton.InferenceServerClient, is_good: bool) -> None:
        if self._keeps_connections and is_good:
            with self._lock:
                self._idle.append(connection)
        else:
            connection.close()

    def _open(self, exchange: SessionExchange, start: dict[str, Any]) -> ClientSession:
        return ClientSession(self, exchange, start)


class ClientSession:
    """One session and its gRPC stream. Use it as a context manager, or call ``close``.

    ``push_text``, ``end_text`` and ``cancel`` may be called from any thread; iterate in one. Any error ends the session for the client.
    """

    def __init__(self, client: BistreamClient, exchange: SessionExchange, start: dict[str, Any]) -> None:
        self.session_id = exchange.session_id
        self._client = client
        self._exchange = exchange
        self._events: queue.SimpleQueue[Chunk | BaseException | None] = queue.SimpleQueue()  # None: the session has ended normally
        self._lock = threading.Lock()  # of the exchange and of tritonclient's stream
        self._closed = False
        self._connection = client._connect()
        try:
            self._start_stream()
            with self._lock:
                self._write(exchange.start(start))
        except BaseException:
            self.close()
            raise

    def _start_stream(self) -> None:
        """In a daemon thread, so that tritonclient's reader is one too (it inherits that): a program that ends without ``close`` would
        wait for the stream, minutes, at its exit."""
        failures: list[Exception] = []

        def start() -> None:
            try:
                self._connection.start_stream(callback=self._on_response, headers=self._client.security.headers())
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=start, name="bistream-stream", daemon=True)
        thread.start()
        thread.join()
        for failure in failures:
            raise failure

    @property
    def sample_rate(self) -> int:
        """As of the client."""
        return self._client.sample_rate

    @property
    def started_at(self) -> float:
        """``time.monotonic()`` before the start was sent."""
        return self._exchange.started_at

    @property
    def text_ended_at(self) -> float | None:
        """When the end of the text was sent."""
        return self._exchange.text_ended_at

    @property
    def heard(self) -> Heard | None:
        """How much of the text was heard when the cancel arrived: known once the iteration has ended with ``CancelledError``."""
        return self._exchange.heard

    # Outgoing

    def push_text(self, piece: str | bytes, speed: float | None = None) -> None:
        """Send text, cut anywhere (bytes: even inside a character). speed: of what is spoken from here on; None: as before. Raises the
        session's error, ``CancelledError`` if it ended normally."""
        self._send(later_piece(piece, False, speed))

    def end_text(self, piece: str | bytes = b"", speed: float | None = None) -> None:
        """Send the last piece; the rest is spoken and the iteration ends."""
        self._send(later_piece(piece, True, speed))

    def cancel(self) -> None:
        """Stop speaking (barge-in). The iteration ends with ``CancelledError``; audio that has arrived can still be iterated."""
        self._send({"is_cancel": True})

    def _send(self, values: dict[str, Any]) -> None:
        with self._lock:
            if self._closed:
                raise CancelledError("The session is over; start another one for more text.", self.session_id)
            self._write(self._exchange.later(values))

    def _write(self, request: Request) -> None:
        """Under the lock."""
        try:
            self._connection.async_stream_infer(
                self._client.model_name,
                [infer_input(name, value) for name, value in request.values.items()],
                request_id=request.request_id,
                enable_empty_final_response=True,
                parameters=request.parameters,
            )
        except InferenceServerException as error:
            if _STREAM_FAILED not in error.message():  # else its reason comes, or has come, to ``_on_response``
                raise stream_error(error, self._client.address) from None

    # Incoming

    def _on_response(self, result: Any, error: InferenceServerException | None) -> None:
        """Called in tritonclient's thread."""
        exchange = self._exchange
        with self._lock:
            was_over = exchange.is_over
            if error is not None:
                self._on_error(stream_error(error, self._client.address))
            elif (chunk := exchange.on_result(result)) is not None:
                self._events.put(chunk)
            if exchange.is_over and not was_over:
                self._events.put(exchange.failure)

    def _on_error(self, error: BaseException) -> None:
        """Under the lock. On one stream the server answers in order."""
        requests = self._exchange.on_error(error)
        if requests and self._closed:
            self._exchange.end(CancelledError(_CLOSED, self.session_id))
            return
        for request in requests:
            self._write(request)

    def __iter__(self) -> Iterator[Chunk]:
        """Audio as it arrives, until the session ends. Raises ``BistreamError``, ``ConnectionError`` and ``TimeoutError``."""
        while (event := self._next_event()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event

    def _next_event(self) -> Chunk | BaseException | None:
        while True:
            quiet_s = time.monotonic() - self._exchange.last_event_at
            try:
                return self._events.get(timeout=max(0.01, self._client.silence_timeout_s - quiet_s))
            except queue.Empty:
                if time.monotonic() - self._exchange.last_event_at >= self._client.silence_timeout_s:
                    raise TimeoutError(f"No response from {self._client.address} for {self._client.silence_timeout_s:g} s.") from None

    # End

    def close(self) -> None:
        """Close the stream, which cancels a session that is not over. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        # After an error on a piece the session goes on: without a cancel the half-closed stream would wait for its end.
        has_ended = self._exchange.is_over and self._exchange.failure is None
        self._connection.stop_stream(cancel_requests=not has_ended)
        self._client._disconnect(self._connection, is_good=self._exchange.is_over and not isinstance(self._exchange.failure, OSError))
        self._events.put(CancelledError(_CLOSED, self.session_id))

    def __enter__(self) -> ClientSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
