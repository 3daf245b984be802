"""Callers for ``benchmarks/interfaces.py``: in real time over a WebSocket or straight to the server, whole texts over HTTP, and short ones
in a row. Event loops only; every caller has a connection of its own."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2
from websockets.asyncio.client import connect

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
SPEAK = "/v2/speak?model=anna&encoding=linear16&sample_rate=24000"
PIECES_PER_SECOND = 10
PIECE = "lo wor"
AUDIO_BYTES = 1000  # a longer message of the server is audio


@dataclass
class Heard:
    """first_audio_ms: from the first piece of a turn to its first audio. late_ms: how far behind its time a piece was sent at most."""

    first_audio_ms: list[float] = field(default_factory=list)
    audio_bytes: int = 0
    pieces: int = 0
    late_ms: float = 0.0
    failures: int = 0


class _Turn:
    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._began = time.perf_counter()
        self._is_silent = True

    def audio(self, size: int) -> None:
        if self._is_silent:
            self._heard.first_audio_ms.append(1000 * (time.perf_counter() - self._began))
        self._is_silent = False
        self._heard.audio_bytes += size


async def pieces(heard: Heard, count: int, send: Callable[[int], Awaitable[Any]]) -> None:
    """Numbers 1 to count - 1, in real time; the caller has sent number 0."""
    began = time.perf_counter()
    for number in range(1, count):
        due = began + number / PIECES_PER_SECOND
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        heard.late_ms = max(heard.late_ms, 1000 * (time.perf_counter() - due))
        await send(number)
        heard.pieces += 1


async def call_socket(url: str, delay_s: float, turns: int, turn_s: float, heard: Heard) -> None:
    """Deepgram's protocol: raw pieces in, PCM16 in binary messages out."""
    count = round(turn_s * PIECES_PER_SECOND)
    speak = json.dumps({"type": "Speak", "text": PIECE})
    async with connect(url + SPEAK, compression=None, max_queue=None, open_timeout=60) as socket:
        await asyncio.sleep(delay_s)
        for _ in range(turns):
            turn = _Turn(heard)
            await socket.send(speak)
            feeding = asyncio.create_task(_feed(socket, heard, count, speak))
            async for message in socket:
                if isinstance(message, bytes):
                    turn.audio(len(message))
                elif '"SpeechMetadata"' in message:
                    break
                elif '"Error"' in message:
                    heard.failures += 1
                    return
            await feeding


async def _feed(socket: Any, heard: Heard, count: int, speak: str) -> None:
    await pieces(heard, count, lambda number: socket.send(speak))
    await socket.send('{"type":"Flush"}')


async def call_server(url: str, delay_s: float, turns: int, turn_s: float, heard: Heard) -> None:
    """The same turns straight to the server, as messages of its own protocol on one connection."""
    count = round(turn_s * PIECES_PER_SECOND)
    numbers = itertools.count()
    async with grpc.aio.insecure_channel(url, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        await channel.channel_ready()
        await asyncio.sleep(delay_s)
        for _ in range(turns):
            stream: Any = channel.stream_stream(METHOD)()
            turn = _Turn(heard)
            await stream.write(_request(next(numbers), True, False))

            async def send(number: int, stream: Any = stream) -> None:
                await stream.write(_request(next(numbers), False, number == count - 1))

            feeding = asyncio.create_task(pieces(heard, count, send))
            while (data := await stream.read()) is not grpc.aio.EOF:
                if len(data) > AUDIO_BYTES:
                    turn.audio(len(data))
                elif feeding.done():  # the last answer may be that of the last piece
                    await stream.done_writing()
            await feeding


def _request(number: int, is_start: bool, is_end: bool) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="cosyvoice2_bistream", id=f"caller.{number}")
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, datatype, raw in (
        ("target_text", "BYTES", len(PIECE).to_bytes(4, "little") + PIECE.encode()),
        ("session_id", "BYTES", b"\x20\0\0\0" + 32 * b"a"),
        ("is_start", "BOOL", bytes([is_start])),
        ("is_end", "BOOL", bytes([is_end])),
    ):
        message.inputs.add(name=name, datatype=datatype, shape=(1, 1))
        message.raw_input_contents.append(raw)
    data: bytes = message.SerializeToString()
    return data


async def post_speech(host: str, port: int, text: str, response_format: str, heard: Heard) -> None:
    """OpenAI's protocol: a whole text, one response."""
    body = json.dumps({"model": "tts-1", "voice": "anna", "input": text, "response_format": response_format}).encode()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        turn = _Turn(heard)
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        heard.failures += b" 200 " not in answer.split(b"\r\n", 1)[0]
        last = b""
        while data := await reader.read(65536):
            turn.audio(len(data))
            last = (last + data)[-5:]
        heard.failures += last != b"0\r\n\r\n"
    finally:
        writer.close()


async def page(host: str, port: int, path: str) -> bytes:
    """An answer, its head included."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        return await reader.read(-1)
    finally:
        writer.close()


async def short_turn(url: str, heard: Heard) -> None:
    """A connection, a sentence, its audio, and the end of both."""
    async with connect(url + SPEAK, compression=None, open_timeout=60) as socket:
        turn = _Turn(heard)
        await socket.send(json.dumps({"type": "Speak", "text": "Hello world."}))
        await socket.send('{"type":"Flush"}')
        async for message in socket:
            if isinstance(message, bytes):
                turn.audio(len(message))
            elif '"SpeechMetadata"' in message:
                return
    heard.failures += 1
