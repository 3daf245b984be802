"""An utterance as the body of an HTTP response: bytes leave when they are made, and a failure after the first one cuts the connection."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, MutableMapping, Sequence
from typing import Any

from starlette.responses import Response

from bistream.errors import BistreamError, CancelledError, EngineError, ShuttingDownError
from interfaces.audio.encoder import Encoder
from interfaces.audio.formats import OutputFormat
from interfaces.core.caller import Caller
from interfaces.core.errors import SlowReaderError
from interfaces.core.quiet_log import Lines
from interfaces.core.service import SpeechService
from interfaces.core.shares import ShareError
from interfaces.core.speech import Audio, Speech
from interfaces.core.text import Item
from interfaces.core.values import Values
from interfaces.web.answers import error_object


class CutConnectionError(Exception):
    """Ends a response that has begun without its proper end: an ordinary end would look like success."""


class ClientGoneError(CancelledError):
    """Nobody is left to answer."""


class _QuietServer(logging.Filter):
    """Of uvicorn's lines: none for what clients cause, and one in ten seconds for each kind of fault of ours."""

    def __init__(self) -> None:
        super().__init__()
        self._faults = Lines(1)

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return "without completing handshake" not in record.getMessage()  # the client has gone meanwhile
        return not isinstance(error, CutConnectionError) and self._faults.take(repr(error)[:200]) is not None


logging.getLogger("uvicorn.error").addFilter(_QuietServer())


class SpokenText:
    """One text, encoded while it is made. ``close`` in any case."""

    def __init__(self, service: SpeechService, speech: Speech, encoder: Encoder) -> None:
        self.samples = 0
        self._service = service
        self._speech = speech
        self._encoder = encoder
        self._bytes: AsyncGenerator[bytes, None] | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._speech.warnings

    @property
    def characters(self) -> int:
        return self._speech.characters

    @property
    def tokens(self) -> int:
        """Of the speech so far."""
        return round(self.samples / self._encoder.sample_rate * self._service.servers.tokens_per_second)

    async def first(self) -> bytes:
        """The first bytes: from here on errors can no longer be a status. Raises ``BistreamError``."""
        self._bytes = self._encoded()
        return await anext(self._bytes, b"")

    async def rest(self) -> AsyncGenerator[bytes, None]:
        assert self._bytes is not None, "first comes first"
        async with contextlib.aclosing(self._bytes) as parts:
            async for part in parts:
                yield part

    async def _encoded(self) -> AsyncGenerator[bytes, None]:
        try:
            async with contextlib.aclosing(self._speech.__aiter__()) as parts:
                async for part in parts:
                    if isinstance(part, Audio):
                        self.samples += len(part.samples)
                        self._service.counts.audio_s += len(part.samples) / self._encoder.sample_rate
                        if data := self._encoder.feed(part.samples):
                            yield data
        except CancelledError:
            if self._service.drains.is_set():
                raise ShuttingDownError("The gateway is shutting down; try another one.") from None
            raise
        if data := self._encoder.finish():
            yield data

    async def close(self, error: BistreamError | None = None) -> None:
        """error: why, where it is not that all is spoken or that the client has gone."""
        if error is not None:
            self._speech.record.fail(error)
        await self._speech.close()
        self._encoder.close()


async def speak(
    service: SpeechService,
    caller: Caller,
    voice: str,
    items: Sequence[Item],
    target: OutputFormat,
    values: Values,
    gain: float,
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
) -> tuple[SpokenText, bytes]:
    """Opens an utterance with all of its text, and waits for its first bytes. receive: of the request, whose body was read; says when the
    client is gone. Raises ``BistreamError``."""
    encoder = Encoder(target, gain, service.servers.sample_rate, service.servers.comment)
    try:
        speech = service.open(voice, caller, values)
    except BaseException as error:
        encoder.close()
        if isinstance(error, ShareError):
            await asyncio.sleep(error.pause_s)
        raise
    spoken = SpokenText(service, speech, encoder)
    try:
        for item in items:
            await speech.append(item)
        await speech.end()
        return spoken, await _unless_gone(spoken.first(), receive)
    except BaseException as error:
        await spoken.close(_reason(error))
        raise


def _reason(error: BaseException) -> BistreamError | None:
    """None: the client has gone, or the process ends."""
    if isinstance(error, ClientGoneError) or not isinstance(error, Exception):
        return None
    return error if isinstance(error, BistreamError) else EngineError("The gateway failed while it made the audio; try again.")


class SpokenResponse(Response):
    """as_events: server-sent events in OpenAI's form; else the bytes as they are."""

    def __init__(self, spoken: SpokenText, first: bytes, content_type: str, as_events: bool, send_timeout_s: float) -> None:
        super().__init__(media_type="text/event-stream" if as_events else content_type, headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._spoken = spoken
        self._first = first
        self._as_events = as_events
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        writer = asyncio.ensure_future(self._write(send))
        leaver = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait([writer, leaver], return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
        finally:
            for task in (writer, leaver):
                task.cancel()
            await asyncio.gather(writer, leaver, return_exceptions=True)
            await self._spoken.close()

    async def _write(self, send: Callable[[MutableMapping[str, Any]], Awaitable[None]]) -> None:
        async def write(data: bytes, more: bool = True) -> None:
            body = {"type": "http.response.body", "body": data, "more_body": more}
            async with asyncio.timeout(self._send_timeout_s or None):  # wait_for can lose a cancel that comes as the client goes
                await send(body)

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await write(self._framed(self._first))
            async for data in self._spoken.rest():
                await write(self._framed(data))
        except BistreamError as error:
            if self._as_events:
                detail = error_object(error)
                await write(_event({"type": "speech.audio.error", "error": {**detail, "partial_audio": True, "action": "discard"}}))
            raise CutConnectionError from None
        except TimeoutError:
            await self._spoken.close(SlowReaderError("The client does not read."))
            raise CutConnectionError from None
        except Exception as error:
            await self._spoken.close(_reason(error))
            raise
        await write(self._usage() if self._as_events else b"", more=False)

    def _framed(self, data: bytes) -> bytes:
        if not self._as_events:
            return data
        return _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode("ascii")})

    def _usage(self) -> bytes:
        """Characters stand for the input's tokens, which only the servers count; the output's are speech tokens."""
        given, made = self._spoken.characters, self._spoken.tokens
        usage = {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}
        return _event({"type": "speech.audio.done", "usage": usage})


async def _unless_gone(first: Coroutine[Any, Any, bytes], receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> bytes:
    """What ``first`` returns. Raises ``ClientGoneError``."""
    making, leaving = asyncio.ensure_future(first), asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait([making, leaving], return_when=asyncio.FIRST_COMPLETED)
        if making.done():
            return making.result()
        raise ClientGoneError("The client has gone.")
    finally:
        for task in (making, leaving):
            task.cancel()
        await asyncio.gather(making, leaving, return_exceptions=True)


async def disconnected(receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(values: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(values, separators=(",", ":")).encode("ascii") + b"\n\n"
