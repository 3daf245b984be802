"""The model processes (stubs) of a server, as the keeper treats them: which exist, how each one is, load one anew, end their sessions.

Triton neither restarts a dead one nor reports it: readiness stays 200. A dead process keeps its entry in the process table until the server
drops the model's instance, which it never does once a request has met the dead process.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bistream.keeper.host import SHARED_MEMORY
from bistream.keeper.model_control import ModelControl
from bistream.processes.control_files import LONGEST_STOP_S, Order, forget_process, read_status, read_statuses, write_order

logger = logging.getLogger(__name__)

CLOSING_S = LONGEST_STOP_S + 2.0  # after the deadline of a drain, to notify the remaining clients and close their sessions
TELLING_S = 2.0  # after the deadline of a failure, to notify them; nothing is closed then
STUB = b"triton_python_backend_stub"
STUB_FILE, STUB_REGION, STUB_PARENT, STUB_CONTROL = 1, 2, 5, 7  # indices into the stub's command line
DEAD, STOPPED = ("Z", "X"), ("T", "t")  # state letters in /proc/PID/stat
PULSE_INTERVAL_S = 0.02
_HEADER_BYTES = 16  # header of every block in this memory
# Four flags (the first is the heartbeat), two mutexes of 40 bytes, the handles of five message queues.
_CONTROL_BLOCK = struct.Struct("<4B4x80x5q")


def stubs_of(server: int) -> list[tuple[int, list[bytes]]]:
    """(process id, command line) of the living model processes of a server. Reads the command line of every process of the host."""
    return [(pid, arguments) for pid, arguments in _stubs() if arguments[STUB_PARENT] == b"%d" % server]


def end_orphans(prefix: str) -> None:
    """Kill the model processes of a dead keeper, whose shared memory has this prefix.

    They end themselves when their server dies, but one that is blocked inside the server's code needs half a minute for it
    (``triton/startup.py:end_when_useless``) and holds its GPU memory until then.
    """
    for pid, arguments in _stubs():
        if arguments[STUB_REGION].startswith(prefix.encode()):
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                os.kill(pid, signal.SIGKILL)


def _stubs() -> Iterator[tuple[int, list[bytes]]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            arguments = path.read_bytes().split(b"\0")
            if arguments[0].endswith(STUB) and len(arguments) > STUB_CONTROL:
                yield int(path.parent.name), arguments


def model_of(arguments: list[bytes]) -> str:
    """From a stub's command line, which names ``<repository>/<model>/<version>/model.py``."""
    return Path(os.fsdecode(arguments[STUB_FILE])).parent.parent.name


def process_state(pid: int) -> str | None:
    """State letter of a process; ``None`` when it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return None


@dataclass(frozen=True)
class _Stub:
    process: int  # pidfd: readable when the process has ended
    memory: mmap.mmap
    flag: int  # offset of the byte

    def close(self) -> None:
        self.memory.close()
        os.close(self.process)


class StubPulse:
    """Keeps Triton from giving up on model processes that were only stalled for a moment. Of those that were adopted, until ``stop``.

    While the server waits for a model process, it clears a heartbeat flag in their shared memory and checks it a second later. A thread
    of the model process sets the flag every 0.3 s. When that thread is not scheduled (a host short of memory or processors, a virtual
    machine being migrated, a clock set forward), the server fails the request and frees its memory. When the model process reaches that
    request, it reads freed memory and dies, and all sessions are lost (a stall of 2.5 s was enough every time). So the keeper sets the flag
    as well, more often, for as long as the process exists. A dead process is still detected within a second, a hanging one by its silence.

    It writes one byte, at an offset given on the process's command line; the layout is that of ``IPCControlShm`` in the source of the
    backend (r24.10). Memory with any other layout is left alone.
    """

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


@dataclass(frozen=True)
class ModelProcess:
    pid: int
    model: str


@dataclass(frozen=True)
class Sign:
    """What is seen of one process at one look. beat: changes while it works; ``None``: it gives no such sign, only its stop counts."""

    beat: Hashable
    is_stopped: bool = False
    busy_s: float = 0.0


class ServedModels:
    """Of one server. ``find`` while its models load, and after each that is loaded anew. ``unload`` and ``load`` may be called by another
    thread; ``stop`` before the server is terminated."""

    def __init__(self, control: ModelControl, server: int, directory: Path, shared_memory: Path = SHARED_MEMORY) -> None:
        """server: process id. directory: of the control files."""
        self._control = control
        self._server = server
        self._directory = directory
        self._living: dict[int, ModelProcess] = {}
        self._pulse = StubPulse(shared_memory)

    @property
    def living(self) -> tuple[ModelProcess, ...]:
        return tuple(self._living.values())

    def find(self) -> None:
        """Look for processes that have been started since."""
        for pid, arguments in stubs_of(self._server):
            if pid not in self._living:
                self._pulse.adopt(pid, arguments)
                self._living[pid] = ModelProcess(pid, model_of(arguments))

    def take_dead(self) -> list[str]:
        """The models of which a process has died since the last call."""
        states = {pid: process_state(pid) for pid in tuple(self._living)}
        dead = [self._living.pop(pid) for pid, state in states.items() if state is None or state in DEAD]
        for process in dead:
            forget_process(self._directory, process.model, process.pid)
        return [process.model for process in dead]

    def signs(self) -> dict[ModelProcess, Sign]:
        """What is seen of every living process now."""
        return {process: self._sign(process) for process in self.living}

    def _sign(self, process: ModelProcess) -> Sign:
        status = read_status(self._directory, process.model, process.pid)
        is_stopped = process_state(process.pid) in STOPPED
        return Sign(None, is_stopped) if status is None else Sign(status.beats, is_stopped, status.busy_s)

    def unload(self, model: str) -> None:
        """Take one model out of service; the others serve on. Raises ``ServerError``."""
        self._control.unload(model)

    def load(self, model: str) -> None:
        """Load an unloaded model; returns when it serves. Raises ``ServerError``."""
        try:
            self._control.load(model)
        finally:
            self.find()

    def stop(self) -> None:
        """Nothing is written into the memory of the processes after this. Idempotent."""
        self._pulse.stop()


class Ending:
    """The end of the sessions, as ordered: poll ``is_over``. Raises ``OSError`` when the order cannot be written."""

    def __init__(self, directory: Path, order: Order, clock: Callable[[], float] = time.monotonic) -> None:
        """directory: of the control files."""
        self._directory = directory
        self._clock = clock
        self._give_up_at = clock() + order.patience_s + (CLOSING_S if order.failed is None else TELLING_S)
        write_order(directory, order)

    def is_over(self) -> bool:
        """Whether every front model has reported that no session is left, or the time is up."""
        statuses = read_statuses(self._directory)
        return self._clock() >= self._give_up_at or all(status.is_drained for _, status in statuses if status.sessions is not None)

    @property
    def sessions_left(self) -> int:
        """Sessions still running at the front models that have begun to end them."""
        return sum(status.sessions or 0 for _, status in read_statuses(self._directory))
