"""The asyncio client with the verbs of the threaded one, so that both have the same tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from bistream.client.asyncio_client import AsyncBistreamClient, AsyncClientSession
from bistream.client.exchange import Chunk, Heard


class BlockingClient:
    """Its event loop runs only while something is asked of it."""

    def __init__(self, runner: asyncio.Runner, address: str, **options: Any) -> None:
        self._runner = runner
        self._client = AsyncBistreamClient(address, **options)

    def start(self, **inputs: Any) -> BlockingSession:
        return BlockingSession(self._runner, self._client.start(**inputs))


class BlockingSession:
    def __init__(self, runner: asyncio.Runner, session: AsyncClientSession) -> None:
        self._runner = runner
        self._session = session
        self.session_id = session.session_id
        runner.run(session.__aenter__())

    @property
    def heard(self) -> Heard | None:
        return self._session.heard

    def push_text(self, piece: str | bytes) -> None:
        self._runner.run(self._session.push_text(piece))

    def end_text(self, piece: str | bytes = b"") -> None:
        self._runner.run(self._session.end_text(piece))

    def cancel(self) -> None:
        self._runner.run(self._session.cancel())

    def __iter__(self) -> Iterator[Chunk]:
        chunks = aiter(self._session)

        async def after() -> Chunk | None:
            return await anext(chunks, None)

        while (chunk := self._runner.run(after())) is not None:
            yield chunk

    def close(self) -> None:
        self._runner.run(self._session.close())

    def __enter__(self) -> BlockingSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
