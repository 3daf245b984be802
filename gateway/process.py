"""The gate as a process, from its command line to its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

import uvloop

from bistream.errors import ConfigError
from bistream.processes.limits import raise_soft_limit
from bistream.processes.signals import stop_events
from bistream.processes.whole_file import write_whole
from gateway.gate import Gate
from gateway.grpc_server import GrpcServer
from gateway.http_api import HttpApi
from gateway.keys import Keys
from gateway.listening import LOOPBACK
from gateway.options import parse_arguments
from gateway.settings import GateSettings, Listen
from gateway.upstream import Upstream

logger = logging.getLogger("gateway")

EXIT_OK, EXIT_FAILED = 0, 1
HEARTBEAT_S = 0.25  # at which the ready file is touched
FILES_WANTED = 65_536  # a connection each
FAREWELL_S = 2.0  # after the last session, for what is still on its way to the clients


async def serve(settings: GateSettings) -> None:
    """Until the process was asked to end and the sessions have ended. Raises ``ConfigError`` at the start."""
    keys = None if settings.keys_file is None else Keys.read(settings.keys_file)
    raise_soft_limit(resource.RLIMIT_NOFILE, FILES_WANTED)
    first, second = stop_events()
    upstream = Upstream(settings.upstream)
    gate = Gate(settings, upstream, keys)
    tasks = [asyncio.create_task(upstream.watch()), asyncio.create_task(gate.run())]
    grpc_server = GrpcServer(gate)
    http_api = None if settings.http is None else HttpApi(gate)
    try:
        await grpc_server.start(settings.grpc.address, settings.grpc.port, settings.tls)
        if http_api is not None and settings.http is not None:
            await http_api.start(settings.http.address, settings.http.port, settings.tls)
        addresses = _announce(settings, grpc_server, http_api)
        if settings.ready_file is not None:
            tasks.append(asyncio.create_task(_report(gate, settings.ready_file, addresses)))
        await first.wait()
        await gate.drain(settings.drain_timeout_s, second)
        await _close_doors(grpc_server, http_api, 0.0 if second.is_set() else FAREWELL_S)
    finally:
        for task in tasks:
            task.cancel()
        if settings.ready_file is not None:
            settings.ready_file.unlink(missing_ok=True)
        await gate.close()
        await _close_doors(grpc_server, http_api, 0.0)


async def _close_doors(grpc_server: GrpcServer, http_api: HttpApi | None, grace_s: float) -> None:
    closing = [grpc_server.stop(grace_s)]
    if http_api is not None:
        closing.append(http_api.stop(grace_s))
    await asyncio.gather(*closing)


def _announce(settings: GateSettings, grpc_server: GrpcServer, http_api: HttpApi | None) -> dict[str, str]:
    """The addresses, as the ready file holds them. Raises ``ConfigError`` where none can be written."""
    addresses = {"grpc": _reachable(settings.grpc, grpc_server.port)}
    if http_api is not None and settings.http is not None:
        addresses["http"] = _reachable(settings.http, http_api.port)
    logger.info("the gate to %s is open: %s", settings.upstream.address, ", ".join(f"{name} {where}" for name, where in addresses.items()))
    for where in (settings.grpc, settings.http):
        if where is not None and where.address not in LOOPBACK and not settings.behind_proxy:
            logger.warning(
                "%s is open to other machines without the proxy that protects it (--edge of serve.py); see docs/gateway.md", where.address
            )
    if settings.ready_file is not None:
        try:
            write_whole(settings.ready_file, json.dumps({**addresses, "ready": False}).encode())
        except OSError as error:
            raise ConfigError(f"The ready file {settings.ready_file} cannot be written ({error.strerror}); choose another one.") from None
    return addresses


async def _report(gate: Gate, ready_file: Path, addresses: Mapping[str, str]) -> None:
    """Keep the file true, and young: a busy gate is not a dead one as long as this event loop turns."""
    told = False
    while True:
        with contextlib.suppress(OSError):  # the next time comes soon
            os.utime(ready_file)  # also where the disk has no room for another content: a gate that gives no sign of life is killed
            if gate.is_ready is not told:
                write_whole(ready_file, json.dumps({**addresses, "ready": gate.is_ready}).encode())
                told = gate.is_ready
        await asyncio.sleep(HEARTBEAT_S)


def _reachable(listen: Listen, port: int) -> str:
    return f"{'127.0.0.1' if listen.address in ('0.0.0.0', '::') else listen.address}:{port}"


def main(arguments: list[str] | None = None) -> int:
    settings = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s gate: %(message)s", stream=sys.stderr)
    logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)  # a traceback for each call whose client has gone
    gc.freeze()  # what the imports made is never garbage, and messages come and go without cycles: look for them seldom
    gc.set_threshold(20_000, 20, 50)
    try:
        uvloop.run(serve(settings))
    except ConfigError as error:
        sys.stderr.write(f"gateway: {error.sentence}\n")
        return EXIT_FAILED
    return EXIT_OK
