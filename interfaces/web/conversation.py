"""Runs one protocol on one socket: messages to the state machine, its actions to utterances and back to the socket. Knows no framework."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, Protocol

from bistream.errors import BistreamError, CancelledError, EngineError, ShuttingDownError
from interfaces.audio.encoder import Encoder
from interfaces.core.caller import Caller
from interfaces.core.errors import SlowReaderError
from interfaces.core.record import Ending
from interfaces.core.service import SpeechService
from interfaces.core.shares import ShareError
from interfaces.core.speech import Audio, Flushed, Speech
from interfaces.core.values import Values
from interfaces.protocols.actions import Action, Append, Cancel, Close, End, Flush, Made, Open, Send, SocketProtocol

MESSAGES_IN_A_TURN = 4  # of one socket, before others have theirs
MAX_PIECE_S = 0.5  # of audio in one message: clients bound the size of a message
GOING_AWAY = 1001
GOODBYE = Close(GOING_AWAY, "the gateway is shutting down")


class Socket(Protocol):
    """A WebSocket that was accepted. ``receive`` returns None when the client is gone; ``send`` and ``close`` never raise for that."""

    async def receive(self) -> str | bytes | None: ...

    async def send(self, message: str | bytes) -> None: ...

    async def close(self, code: int, reason: str) -> None: ...


class _Utterance:
    def __init__(self, speech: Speech, encoder: Encoder) -> None:
        self.speech = speech
        self.encoder = encoder
        self.pump: asyncio.Task[None] | None = None
        self.is_cancelled = False


class Conversation:
    """``run`` until the client is gone, the protocol closes the socket, or the process drains and nothing is under way."""

    def __init__(self, socket: Socket, protocol: SocketProtocol, service: SpeechService, caller: Caller) -> None:
        self._socket = socket
        self._protocol = protocol
        self._service = service
        self._caller = caller
        self._utterances: dict[str, _Utterance] = {}
        self._turn = asyncio.Lock()  # the state machine and the socket's order of messages
        self._closed = asyncio.Event()
        self._heard_at = 0.0  # the time of the last message
        self._pause_s = 0.0  # before the next one is read

    async def run(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        tasks = [asyncio.create_task(coroutine) for coroutine in (self._read(), self._watch(), self._leave_on_drain())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pumps = [utterance.pump for utterance in self._utterances.values() if utterance.pump is not None]
            for task in (*tasks, *pumps):
                task.cancel()
            for utterance in list(self._utterances.values()):
                await utterance.speech.close()
            for result in await asyncio.gather(*tasks, *pumps, return_exceptions=True):
                if isinstance(result, Exception):
                    self._service.log.warn(self._caller.address, "a conversation has failed.", result)

    async def _read(self) -> None:
        async with self._turn:
            await self._carry_out(self._protocol.opened())
        count = 0
        while (message := await self._socket.receive()) is not None:
            self._heard_at = asyncio.get_running_loop().time()
            async with self._turn:
                await self._carry_out(self._protocol.received(message))
            if self._closed.is_set():
                return
            count += 1
            if self._pause_s or count % MESSAGES_IN_A_TURN == 0:
                await asyncio.sleep(self._pause_s)
                self._pause_s = 0.0

    async def _watch(self) -> None:
        """Until the socket is closed, from here or because it is idle. One timer for the socket: one for each message would cost as much
        as the message."""
        limit_s, loop = self._service.limits.idle_socket_s, asyncio.get_running_loop()
        while not self._closed.is_set():
            try:
                async with asyncio.timeout_at(self._heard_at + limit_s if limit_s else None):
                    await self._closed.wait()
            except TimeoutError:
                if loop.time() < self._heard_at + limit_s:
                    continue
                if self._protocol.is_idle:
                    await self._close(Close(GOING_AWAY, "no message for too long"))
                self._heard_at = loop.time()  # it listens

    async def _leave_on_drain(self) -> None:
        await self._service.drains.wait()
        while pumps := [one.pump for one in self._utterances.values() if one.pump is not None and not one.pump.done()]:
            await asyncio.wait(pumps)
            await asyncio.sleep(0)
        await self._close(GOODBYE)

    async def _carry_out(self, actions: Sequence[Action]) -> None:
        """In order; a failure of an utterance drops the rest of what was to be done."""
        for action in actions:
            if self._closed.is_set():
                return
            try:
                await self._do(action)
            except SlowReaderError:
                return  # the socket is given up
            except BistreamError as error:
                if isinstance(error, ShareError):
                    self._pause_s = error.pause_s
                await self._fail(getattr(action, "speech", ""), error)
                return

    async def _do(self, action: Action) -> None:
        match action:
            case Send(message):
                await self._send(message)
            case Close():
                await self._close(action)
            case Open():
                self._open(action)
            case Cancel(name):
                await self._cancel(name)
            case Append(name, item):
                if (utterance := self._utterances.get(name)) is not None:
                    await utterance.speech.append(item)
            case Flush(name):
                if (utterance := self._utterances.get(name)) is not None:
                    await utterance.speech.flush()
            case End(name):
                if (utterance := self._utterances.get(name)) is not None:
                    await utterance.speech.end()

    def _open(self, action: Open) -> None:
        encoder = Encoder(action.format, action.gain, self._service.servers.sample_rate, self._service.servers.comment)
        try:
            # All utterances of a socket have the id of its request.
            named: Values = {"continues": self._caller.trace.request_id} if action.continues else {}
            speech = self._service.open(action.voice, self._caller, {**named, **action.values})
        except BaseException:
            encoder.close()
            raise
        utterance = self._utterances[action.speech] = _Utterance(speech, encoder)
        utterance.pump = asyncio.create_task(self._pump(action.speech, utterance))

    async def _cancel(self, name: str) -> None:
        utterance = self._utterances.pop(name, None)
        if utterance is not None:
            utterance.is_cancelled = True
            utterance.speech.record.end(Ending.CANCELLED)
            await utterance.speech.close()

    async def _fail(self, name: str, error: BistreamError) -> None:
        """The protocol says it to the client."""
        utterance = self._utterances.pop(name, None)
        if utterance is not None:
            utterance.is_cancelled = True
            utterance.speech.record.fail(error)
            await utterance.speech.close()
        if self._closed.is_set():
            return  # nobody is left to tell
        await self._carry_out(self._told(name, error))

    def _told(self, name: str, error: BistreamError) -> Sequence[Action]:
        told = self._protocol.failed(name, error)
        if isinstance(error, ShuttingDownError) and self._service.drains.is_set():
            return [GOODBYE if isinstance(action, Close) else action for action in told]
        return told

    async def _pump(self, name: str, utterance: _Utterance) -> None:
        try:
            async with contextlib.aclosing(encoded(utterance.speech.__aiter__(), utterance.encoder)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Made):
                        self._service.counts.audio_s += piece.duration_ms / 1000
                    if not await self._tell(utterance, functools.partial(self._on_piece, name, piece)):
                        return
            await utterance.speech.close()
            await self._tell(utterance, functools.partial(self._finish, name))
        except BistreamError as error:
            reason = ShuttingDownError("The gateway is shutting down; try another one.") if self._ends_by_drain(error) else error
            await self._give_up(name, utterance, reason)
        except Exception as error:
            self._service.log.warn(self._caller.address, "an utterance has failed.", error)
            await self._give_up(name, utterance, EngineError("The gateway failed while it made the audio; try again."))
        finally:
            utterance.encoder.close()

    async def _give_up(self, name: str, utterance: _Utterance, error: BistreamError) -> None:
        async with self._turn:
            if not utterance.is_cancelled:
                await self._fail(name, error)

    def _ends_by_drain(self, error: BistreamError) -> bool:
        return isinstance(error, CancelledError) and self._service.drains.is_set()

    async def _tell(self, utterance: _Utterance, act: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Whether the utterance goes on."""
        async with self._turn:
            if not utterance.is_cancelled and not self._closed.is_set():
                await act()
        return not utterance.is_cancelled and not self._closed.is_set()

    async def _on_piece(self, name: str, piece: Made | Flushed) -> None:
        if isinstance(piece, Flushed):
            await self._carry_out(self._protocol.flushed(name))
        else:
            await self._carry_out(self._protocol.audio(name, piece))

    async def _finish(self, name: str) -> None:
        self._utterances.pop(name, None)
        await self._carry_out(self._protocol.finished(name))

    async def _send(self, message: dict[str, Any] | bytes) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message, separators=(",", ":"))
        try:
            async with asyncio.timeout(self._service.limits.send_timeout_s or None):
                await self._socket.send(data)
        except TimeoutError:
            self._closed.set()
            error = SlowReaderError("The client does not read.")
            for utterance in self._utterances.values():
                utterance.speech.record.fail(error)
            raise error from None

    async def _close(self, action: Close) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._service.limits.send_timeout_s or None):
                await self._socket.close(action.code, action.reason[:120])


async def encoded(parts: AsyncGenerator[Audio | Flushed, None], encoder: Encoder) -> AsyncGenerator[Made | Flushed, None]:
    """In messages of bounded length. Within a chunk the voice goes on evenly; that text is certainly spoken is known at its end."""
    consumed, position, size = 0, None, round(MAX_PIECE_S * encoder.sample_rate)
    async with contextlib.aclosing(parts):
        async for part in parts:
            if isinstance(part, Flushed):
                yield part
                continue
            before = consumed if position is None else position
            for begin in range(0, len(part.samples), size):
                samples = part.samples[begin : begin + size]
                share = (begin + len(samples)) / len(part.samples)
                position = None if part.text_position is None else before + round(share * (part.text_position - before))
                consumed = part.text_consumed if share == 1 else consumed
                yield Made(encoder.feed(samples), 1000 * len(samples) / encoder.sample_rate, consumed, position)
    rest = encoder.finish()
    if rest:
        yield Made(rest, 0.0, consumed, position)
