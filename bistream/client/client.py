"""A session with the server: push text as it comes, iterate over the audio as it arrives.

    client = BistreamClient("localhost:8001")
    with client.start(reference_wav=samples_16k, reference_text="What is said in it.") as session:
        session.push_text("Hello ")          # from any thread, while another one plays
        session.end_text("world.")
        for chunk in session:
            play(chunk.waveform)             # float32, 24 kHz

The client sends the hash of a recording that the server has heard; where the server has forgotten it, the recording goes after all, unseen.
Errors of the server are raised as classes of ``bistream.errors``; an unreachable or lost server raises ``ConnectionError``.
The sessions are those of ``asyncio_client.py``, on an event loop in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any

from bistream.client.asyncio_client import AsyncBistreamClient, AsyncClientSession
from bistream.client.background_loop import run
from bistream.client.connection import INSECURE, ClientSecurity
from bistream.client.exchange import Chunk, Heard, SessionExchange
from bistream.client.opening import SessionStarts
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.errors import BistreamError


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
        TLS. sends_hashes: false sends the recording with every session. keeps_connections: sessions share connections, which saves the
        time to connect, and which ``close`` ends. Else each makes its own.
        """
        self.address = address
        self._client = AsyncBistreamClient(address, model_name, silence_timeout_s, security, sends_hashes, keeps_connections)
        self.known_voices = self._client.known_voices

    def close(self) -> None:
        """Close the connections that are kept, with all their sessions. Idempotent."""
        run(self._client.close())

    def _open(self, exchange: SessionExchange, start: dict[str, Any]) -> ClientSession:
        return ClientSession(AsyncClientSession(self._client, exchange, start))


class ClientSession:
    """One session and its gRPC stream. Use it as a context manager, or call ``close``.

    ``push_text``, ``end_text`` and ``cancel`` may be called from any thread; iterate in one. Any error ends the session for the client.
    """

    def __init__(self, session: AsyncClientSession) -> None:
        self.session_id = session.session_id
        self._session = session
        run(session.__aenter__())

    @property
    def started_at(self) -> float:
        """``time.monotonic()`` before the start was sent."""
        return self._session.started_at

    @property
    def text_ended_at(self) -> float | None:
        """When the end of the text was sent."""
        return self._session.text_ended_at

    @property
    def heard(self) -> Heard | None:
        """How much of the text was heard when the cancel arrived: known once the iteration has ended with ``CancelledError``."""
        return self._session.heard

    def push_text(self, piece: str | bytes) -> None:
        """Send text, cut anywhere (bytes: even inside a character). Raises the session's error, ``CancelledError`` if it ended normally."""
        run(self._session.push_text(piece))

    def end_text(self, piece: str | bytes = b"") -> None:
        """Send the last piece; the rest is spoken and the iteration ends."""
        run(self._session.end_text(piece))

    def cancel(self) -> None:
        """Stop speaking (barge-in). The iteration ends with ``CancelledError``; audio that has arrived can still be iterated."""
        run(self._session.cancel())

    def __iter__(self) -> Iterator[Chunk]:
        """Audio as it arrives, until the session ends. Raises ``BistreamError``, ``ConnectionError`` and ``TimeoutError``."""
        while (chunk := run(self._session.next_chunk())) is not None:
            yield chunk

    def close(self) -> None:
        """Close the stream, which cancels a session that is not over. Idempotent."""
        run(self._session.close())

    def __enter__(self) -> ClientSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


__all__ = ["BistreamClient", "BistreamError", "Chunk", "ClientSession"]
