"""``python -m gateway``: the gate as a process. See ``--help`` and docs/gateway.md."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
from pathlib import Path

import uvloop

from bistream.errors import ConfigError
from gateway.gate import Gate
from gateway.grpc_door import GrpcDoor
from gateway.http_door import HttpDoor
from gateway.keys import Keys
from gateway.open_files import ensure_open_files
from gateway.options import parse_arguments
from gateway.settings import GateSettings, Listen
from gateway.upstream import Upstream

logger = logging.getLogger("gateway")

EXIT_OK, EXIT_FAILED = 0, 1
BEAT_INTERVAL_S = 0.5
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
    ensure_open_files(settings)
    signals = Signals()
    upstream = Upstream(settings.upstream)
    gate = Gate(settings, upstream, keys)
    tasks = [asyncio.create_task(upstream.watch()), asyncio.create_task(gate.run())]
    grpc_door = GrpcDoor(gate)
    http_door = None if settings.http is None else HttpDoor(gate)
    try:
        await grpc_door.start(settings.grpc.address, settings.grpc.port, settings.tls)
        if http_door is not None and settings.http is not None:
            await http_door.start(settings.http.address, settings.http.port, settings.tls)
        _announce(settings, grpc_door, http_door)
        tasks.append(asyncio.create_task(_beat(settings.ready_file)))
        await signals.first.wait()
        await gate.drain(settings.drain_timeout_s, signals.second)
        await _close_doors(grpc_door, http_door, 0.0 if signals.second.is_set() else FAREWELL_S)
    finally:
        _withdraw(settings)
        for task in tasks:
            task.cancel()
        await gate.close()
        await _close_doors(grpc_door, http_door, 0.0)


async def _beat(ready_file: Path | None) -> None:
    """Renew the time of the ready file while this event loop turns: the heartbeat by which the keeper tells a busy gate from a dead one."""
    while ready_file is not None:
        with contextlib.suppress(OSError):
            os.utime(ready_file)
        await asyncio.sleep(BEAT_INTERVAL_S)


async def _close_doors(grpc_door: GrpcDoor, http_door: HttpDoor | None, grace_s: float) -> None:
    closing = [grpc_door.stop(grace_s)]
    if http_door is not None:
        closing.append(http_door.stop(grace_s))
    await asyncio.gather(*closing)


def _announce(settings: GateSettings, grpc_door: GrpcDoor, http_door: HttpDoor | None) -> None:
    addresses = {"grpc": _reachable(settings.grpc, grpc_door.port)}
    if http_door is not None and settings.http is not None:
        addresses["http"] = _reachable(settings.http, http_door.port)
    logger.info("the gate to %s is open: %s", settings.upstream.address, ", ".join(f"{name} {where}" for name, where in addresses.items()))
    if settings.ready_file is not None:
        try:
            settings.ready_file.write_text(json.dumps(addresses), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"The ready file {settings.ready_file} cannot be written ({error.strerror}); choose another one.") from None


def _withdraw(settings: GateSettings) -> None:
    if settings.ready_file is not None:
        with contextlib.suppress(OSError):
            settings.ready_file.unlink()


def _reachable(listen: Listen, port: int) -> str:
    return f"{'127.0.0.1' if listen.address in ('0.0.0.0', '::') else listen.address}:{port}"


def main(arguments: list[str] | None = None) -> int:
    settings = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s gate: %(message)s", stream=sys.stderr)
    logging.getLogger("hpack").setLevel(logging.WARNING)  # its debug lines hold API keys
    gc.freeze()  # what the imports made is never garbage, and messages come and go without cycles: look for them seldom
    gc.set_threshold(20_000, 20, 50)
    try:
        uvloop.run(serve(settings))
    except ConfigError as error:
        sys.stderr.write(f"gateway: {error.sentence}\n")
        return EXIT_FAILED
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
