"""One call of grpc.aio, as bytes: its messages, its end, and the host that it comes from."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote

import grpc

MAX_DETAILS = 512  # characters of a status: all of its fields must fit into what clients take
BODY_TIMEOUT_S = 60.0  # for the message of a unary call
Context = Any  # grpc.aio.ServicerContext


class CallError(Exception):
    """Ends a call with a status other than OK."""

    def __init__(self, status: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.status = status
        self.details = details[:MAX_DETAILS].encode("utf-8", "replace").decode()


async def read_message(context: Context) -> bytes:
    """The first message of a call whose client sends one. Raises ``CallError``."""
    data = await _read(context, "No message came")
    if data is grpc.aio.EOF:
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_INPUT: The call has no message; send one.")
    return bytes(data)


async def read_one(context: Context) -> bytes:
    """The message of a unary call. Raises ``CallError`` for none, and for more than one."""
    data = await read_message(context)
    if await _read(context, "The call was not half-closed") is not grpc.aio.EOF:
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_INPUT: The call has more than one message; send one.")
    return data


async def _read(context: Context, problem: str) -> Any:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await context.read()
    except TimeoutError:
        raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, f"{problem} within {BODY_TIMEOUT_S:g} s.") from None


def peer_host(peer: str) -> str:
    """The host in the name that gRPC gives a peer: ``ipv4:10.0.0.1:4711``, ``ipv6:%5B::1%5D:4711``."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
