"""The gate as a process, from its command line to its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import signal
import sys
from pathlib import Path

import uvloop

from bistream.errors import ConfigError
from bistream.processes.limits import raise_soft_limit
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
HEARTBEAT_S = 0.5  # at which the ready file is touched
FILES_WANTED = 65_536  # a connection each
FAREWELL_S = 2.0  # after the last session, for what is still on its way to the clients


class Signals:
    """How often the process was asked to end."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._note)

    def _note(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


async def serve(settings: GateSettings) -> None:
    """Until the process was asked to end and the sessions have ended. Raises ``ConfigError`` at the start."""
    keys = None if settings.keys_file is None else Keys.read(settings.keys_file)
    raise_soft_limit(resource.RLIMIT_NOFILE, FILES_WANTED)
    signals = Signals()
    upstream = Upstream(settings.upstream)
    gate = Gate(settings, upstream, keys)
    tasks = [asyncio.create_task(work) for work in (upstream.watch(), gate.run(), _beat(settings.ready_file))]
    grpc_server = GrpcServer(gate)
    http_api = None if settings.http is None else HttpApi(gate)
    try:
        await grpc_server.start(settings.grpc.address, settings.grpc.port, settings.tls)
        if http_api is not None and settings.http is not None:
            await http_api.start(settings.http.address, settings.http.port, settings.tls)
        _announce(settings, grpc_server, http_api)
        await signals.first.wait()
        await gate.drain(settings.drain_timeout_s, signals.second)
        await _close_doors(grpc_server, http_api, 0.0 if signals.second.is_set() else FAREWELL_S)
    finally:
        _withdraw(settings)
        for task in tasks:
            task.cancel()
        await gate.close()
        await _close_doors(grpc_server, http_api, 0.0)


async def _close_doors(grpc_server: GrpcServer, http_api: HttpApi | None, grace_s: float) -> None:
    closing = [grpc_server.stop(grace_s)]
    if http_api is not None:
        closing.append(http_api.stop(grace_s))
    await asyncio.gather(*closing)


def _announce(settings: GateSettings, grpc_server: GrpcServer, http_api: HttpApi | None) -> None:
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
            settings.ready_file.write_text(json.dumps(addresses), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"The ready file {settings.ready_file} cannot be written ({error.strerror}); choose another one.") from None


async def _beat(ready_file: Path | None) -> None:
    """A busy gate is not a dead one: as long as this event loop turns, the ready file is young."""
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        if ready_file is not None:
            with contextlib.suppress(OSError):  # not written yet, or withdrawn
                os.utime(ready_file)


def _withdraw(settings: GateSettings) -> None:
    if settings.ready_file is not None:
        with contextlib.suppress(OSError):
            settings.ready_file.unlink()


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
