"""Streams that a client opens and resets faster than the gate turns."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tritonclient.grpc import service_pb2

from gateway.grpc_server import SPARE_STREAMS
from gateway.settings import GateLimits
from tests.unit.client.fake_server import Speakers
from tests.unit.edge.http2 import Connection
from tests.unit.gateway.rig import TIMEOUT_S, GateRig

SHARE = 4
RESETS = 2_000


@pytest.mark.parametrize("behind_proxy", [False, True])
def test_they_count_until_the_gate_has_seen_them(behind_proxy: bool) -> None:
    """Else one connection fills the line of all new calls. Behind a proxy, one connection may have the streams of all clients."""
    with GateRig(Speakers(), GateLimits(streams_per_address=SHARE, max_streams=1000), behind_proxy=behind_proxy) as rig:
        go, is_held = threading.Event(), threading.Event()

        async def hold() -> None:
            is_held.set()
            go.wait(TIMEOUT_S)  # the gate's loop stands still

        holder = threading.Thread(target=lambda: rig.run(hold()))
        holder.start()
        is_held.wait(TIMEOUT_S)
        try:
            asyncio.run(asyncio.wait_for(send(rig.grpc_port), TIMEOUT_S))
        finally:
            go.set()
            holder.join()
        channel, stub = rig.stub()
        with channel:
            assert stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=TIMEOUT_S).live  # calls are taken in order
        rig.wait_for(lambda: rig.gate.admission.calls == 0)
        taken = rig.gate.metrics.streams + rig.gate.metrics.refusals["BUSY"]
        assert 0 < taken <= (1000 if behind_proxy else SHARE) + SPARE_STREAMS + 1


async def send(port: int) -> None:
    """All resets, until the server has read them: it answers a ping behind them."""
    connection = await Connection.open(port)
    for _ in range(RESETS):
        connection.reset(connection.begin())
        await connection.writer.drain()
    await connection.ping()
    await connection.close()
