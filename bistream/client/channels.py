"""The gRPC connections of the asyncio client to one server."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from bistream.client.connection import ClientSecurity
from bistream.client.translation import call_error

INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
CALLS_PER_CHANNEL = 64  # below the 100 streams of a connection that many servers and proxies allow: calls beyond it would wait unseen
END_TIMEOUT_S = 5.0  # for a server to end a stream whose session is over
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # else channels with equal options share one connection
    ("grpc.min_reconnect_backoff_ms", 2000),  # the time that an attempt to connect may take
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),  # else a server that comes back is not tried for up to two minutes
]


class Channels:
    """is_kept: calls share channels, ``CALLS_PER_CHANNEL`` each, until ``close``; else every session has its own. headers: of each call."""

    def __init__(self, address: str, security: ClientSecurity, is_kept: bool) -> None:
        self.headers = security.headers()
        self._address = address
        self._security = security
        self._is_kept = is_kept
        self._calls: dict[grpc.aio.Channel, set[asyncio.Task[None]]] = {}  # of the shared ones, by what reads them
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Shared ones."""
        return len(self._calls)

    def one(self) -> grpc.aio.Channel:
        if not self._is_kept:
            return self._open()
        found = next((channel for channel, calls in self._calls.items() if len(calls) < CALLS_PER_CHANNEL), None)
        if found is None:
            found = self._open()
            self._calls[found] = set()
        return found

    def _open(self) -> grpc.aio.Channel:
        options, credentials = list(_OPTIONS), self._security.grpc_credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(self._address, options=options)
        if self._security.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self._security.server_name))
        return grpc.aio.secure_channel(self._address, credentials, options=options)

    def entered(self, channel: grpc.aio.Channel, reader: asyncio.Task[None]) -> None:
        """A session has begun on the channel. reader: ends with its stream."""
        if channel in self._calls:
            self._calls[channel].add(reader)
            reader.add_done_callback(lambda _: self._ended(channel, reader))

    async def left(self, channel: grpc.aio.Channel, reader: asyncio.Task[None]) -> None:
        """The session is over. Its stream may end on a shared channel meanwhile."""
        if channel in self._calls:
            limit = asyncio.get_running_loop().call_later(END_TIMEOUT_S, reader.cancel)
            reader.add_done_callback(lambda _: limit.cancel())
            return
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await channel.close()

    def _ended(self, channel: grpc.aio.Channel, reader: asyncio.Task[None]) -> None:
        calls = self._calls.get(channel)
        if calls is None:
            return
        calls.discard(reader)
        if not calls and len(self._calls) > 1:
            del self._calls[channel]
            closing = asyncio.create_task(channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def ask(self, method: str, request: Any, response_type: Any, timeout_s: float) -> Any:
        """See ``AsyncBistreamClient.ask``."""
        channel = self.one()
        call = channel.unary_stream(f"/inference.GRPCInferenceService/{method}", _serialized, response_type.FromString)
        try:
            answers = [answer async for answer in call(request, timeout=timeout_s, metadata=tuple(self.headers.items()))]
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                raise TimeoutError(f"The server at {self._address} has not answered within {timeout_s:g} s.") from None
            raise call_error(error, self._address) from None
        finally:
            if channel not in self._calls:
                await channel.close()
        if not answers:
            raise ConnectionError(f"The server at {self._address} ended the call without an answer.")
        return answers[0]

    async def close(self) -> None:
        channels, self._calls = list(self._calls), {}
        await asyncio.gather(*(channel.close() for channel in channels), *self._closing)


def _serialized(request: Any) -> bytes:
    data: bytes = request.SerializeToString()
    return data
