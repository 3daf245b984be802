"""Callers in real time for ``fronts.py``: straight to a server, or over a WebSocket. Every session has a connection of its own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2
from websockets.asyncio.client import connect

SERVICE = "/inference.GRPCInferenceService"
SPEAK = "/v2/speak?model=anna&encoding=linear16&sample_rate=24000"
PIECES_PER_SECOND, PIECE = 10, "lo wor"
AUDIO_BYTES = 1000  # a longer message is audio
START_TIMEOUT_S = 60.0


@dataclass
class Times:
    """Milliseconds. late: how far behind its time a piece was sent."""

    first_audio: list[float] = field(default_factory=list)
    acknowledgement: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)

    def add(self, other: Times) -> None:
        for name, values in vars(other).items():
            getattr(self, name).extend(values)


async def in_real_time(seconds: float, times: Times, send: Callable[[int, bool], Awaitable[object]]) -> None:
    """Pieces from number 1 on (the caller has sent number 0); ``send`` gets the number, and whether it is the last."""
    began, count = time.perf_counter(), int(seconds * PIECES_PER_SECOND)
    for number in range(1, count):
        due = began + number / PIECES_PER_SECOND
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        times.late.append(1000 * (time.perf_counter() - due))
        await send(number, number == count - 1)


def request(number: int, is_end: bool) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="cosyvoice2_bistream", id=f"caller.{number}")
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, datatype, raw in (
        ("target_text", "BYTES", len(PIECE).to_bytes(4, "little") + PIECE.encode()),
        ("session_id", "BYTES", b"\x20\0\0\0" + 32 * b"a"),
        ("is_start", "BOOL", bytes([number == 0])),
        ("is_end", "BOOL", bytes([is_end])),
    ):
        message.inputs.add(name=name, datatype=datatype, shape=(1, 1))
        message.raw_input_contents.append(raw)
    data: bytes = message.SerializeToString()
    return data


async def call_server(address: str, seconds: float, times: Times) -> None:
    """One session over a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        await channel.channel_ready()
        stream: Any = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")()
        sent_at, is_silent = time.perf_counter(), True

        async def send(number: int, is_end: bool) -> None:
            nonlocal sent_at
            sent_at = time.perf_counter()
            await stream.write(request(number, is_end))

        async def listen() -> None:
            nonlocal is_silent
            while (data := await stream.read()) is not grpc.aio.EOF:
                elapsed_ms = 1000 * (time.perf_counter() - sent_at)
                if len(data) < AUDIO_BYTES:
                    times.acknowledgement.append(elapsed_ms)
                elif is_silent:
                    times.first_audio.append(elapsed_ms)
                    is_silent = False

        await send(0, False)
        listener = asyncio.create_task(listen())
        await in_real_time(seconds, times, send)
        await stream.done_writing()
        await listener


async def call_interfaces(address: str, seconds: float, times: Times) -> None:
    """Deepgram's protocol: raw pieces in, PCM16 in binary messages out."""
    speak = json.dumps({"type": "Speak", "text": PIECE})
    async with connect(address + SPEAK, compression=None, max_queue=None, open_timeout=START_TIMEOUT_S) as socket:

        async def feed() -> None:
            await in_real_time(seconds, times, lambda number, is_end: socket.send(speak))
            await socket.send('{"type": "Flush"}')

        sent_at, is_silent = time.perf_counter(), True
        await socket.send(speak)
        feeding = asyncio.create_task(feed())
        async for message in socket:
            if isinstance(message, bytes) and is_silent:
                times.first_audio.append(1000 * (time.perf_counter() - sent_at))
                is_silent = False
            elif isinstance(message, str) and '"SpeechMetadata"' in message:
                break
            elif isinstance(message, str) and '"Error"' in message:
                raise RuntimeError(f"The interfaces answered {message}")
        await feeding
