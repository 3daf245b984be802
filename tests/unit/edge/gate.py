"""A server in the place of the gate, for Envoy before it: ``python -m tests.unit.edge.gate PORT``.

Every stream answers each message that is not empty with itself, and ``pour N`` with N messages of 400 ms of
audio. Unary calls answer with the address that Envoy has put into the headers. Its own HTTP/2 is grpc's, as the gate's.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import uvloop

from benchmarks._gateway_stub import SERVICE, serve

STREAM, UNARY = f"/{SERVICE}/ModelStreamInfer", f"/{SERVICE}/ServerLive"
AUDIO = bytes(38_400)
POUR = b"pour "


async def stream(requests: Any, context: Any) -> None:
    while (data := await context.read()) is not grpc.aio.EOF:
        if data.startswith(POUR):
            for _ in range(int(data.removeprefix(POUR))):
                await context.write(AUDIO)
        elif data:
            await context.write(data)
        else:
            await asyncio.sleep(0)


async def unary(data: bytes, context: Any) -> bytes:
    seen = [str(value) for name, value in context.invocation_metadata() if name == "x-client-address"]
    return ", ".join(seen).encode()


if __name__ == "__main__":
    handlers = {"ModelStreamInfer": grpc.stream_stream_rpc_method_handler(stream), "ServerLive": grpc.unary_unary_rpc_method_handler(unary)}
    uvloop.run(serve(int(sys.argv[1]), handlers, ("grpc.http2.max_ping_strikes", 0)))
