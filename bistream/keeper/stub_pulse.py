"""Keeps Triton from giving up on model processes that were only stalled for a moment.

While the server waits for a model process, it clears a heartbeat flag in their shared memory and checks it a second later. A thread
of the model process sets the flag every 0.3 s. When that thread is not scheduled (a host short of memory or processors, a virtual
machine being migrated, a clock set forward), the server fails the request and frees its memory. When the model process reaches
that request, it reads freed memory and dies between two calls of ``execute``, and all sessions are lost (a stall of 2.5 s was
enough every time). So the keeper sets the flag as well, more often, for as long as the process exists. A dead process is still
detected within a second, a hanging one by the probe.

It writes one byte, at an offset given on the process's command line; the layout is that of ``IPCControlShm`` in the source of the
backend (r24.10). Memory with any other layout is left alone.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

from bistream.keeper.model_processes import STUB_CONTROL, STUB_REGION

logger = logging.getLogger(__name__)

PULSE_INTERVAL_S = 0.02
_HEADER_BYTES = 16  # header of every block in this memory
# Four flags (the first is the heartbeat), two mutexes of 40 bytes, the handles of five message queues.
_CONTROL_BLOCK = struct.Struct("<4B4x80x5q")


@dataclass(frozen=True)
class _Stub:
    process: int  # pidfd: readable when the process has ended
    memory: mmap.mmap
    flag: int  # offset of the byte

    def close(self) -> None:
        self.memory.close()
        os.close(self.process)


class StubPulse:
    """Of the processes that were adopted, until ``stop`` (idempotent)."""

    def __init__(self, directory: Path) -> None:
        """directory: of the shared memory."""
        self._directory = directory
        self._stubs: dict[int, _Stub] = {}  # by pidfd
        self._ended = select.poll()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="triton-pulse", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Nothing is written after this."""
        self._stopped.set()
        self._thread.join()

    def adopt(self, process: int, arguments: list[bytes]) -> None:
        """process: id of a model process. arguments: its command line. From any thread."""
        try:
            stub = self._open(process, arguments)
        except (OSError, ValueError, struct.error) as error:
            logger.warning("process %d cannot be kept alive through a stall of the host: %s", process, error)
        else:
            self._stubs[stub.process] = stub
            self._ended.register(stub.process, select.POLLIN)

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                for descriptor, _ in self._ended.poll(1000 * PULSE_INTERVAL_S):
                    self._forget(descriptor)
                for stub in list(self._stubs.values()):
                    stub.memory[stub.flag] = 1
        finally:
            for descriptor in list(self._stubs):
                self._forget(descriptor)

    def _open(self, process: int, arguments: list[bytes]) -> _Stub:
        """Raises ``OSError``, ``ValueError`` or ``struct.error`` if the server or the system is not the expected one."""
        flag = int(arguments[STUB_CONTROL]) + _HEADER_BYTES
        with (self._directory / os.fsdecode(arguments[STUB_REGION])).open("r+b") as file:
            os.fchmod(file.fileno(), 0o600)  # the server makes it readable by every user, whatever the umask
            size = os.fstat(file.fileno()).st_size
            memory = mmap.mmap(file.fileno(), flag + _CONTROL_BLOCK.size)
        try:
            *flags, one, two, three, four, five = _CONTROL_BLOCK.unpack_from(memory, flag)
            queues = {one, two, three, four, five}
            if flags[0] > 1 or len(queues) < 5 or not all(0 < queue < size and queue % _HEADER_BYTES == 0 for queue in queues):
                raise ValueError("its shared memory has an unknown layout")
            return _Stub(os.pidfd_open(process), memory, flag)
        except BaseException:
            memory.close()
            raise

    def _forget(self, descriptor: int) -> None:
        with contextlib.suppress(KeyError):
            self._ended.unregister(descriptor)
        self._stubs.pop(descriptor).close()
