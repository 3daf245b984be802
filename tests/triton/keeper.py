"""``scripts/serve.py`` as a separate process, and the resources it leaves behind, for tests of its start, failures and end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from bistream.keeper.host import SHARED_MEMORY
from tests.triton.conftest import LIMITS, PROBE_TIMEOUT_S, ROOT, START_TIMEOUT_S, TRITON_BACKENDS, TRITON_SERVER, WAIT_TIMEOUT_S, wait_for
from tests.triton.sockets import parents


def processes_with(word: str) -> list[int]:
    """Ids of the processes with ``word`` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def shared_memory_of(keeper: int) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"bistream_{keeper}_*"))


SERVE = (str(ROOT / "scripts/serve.py"),)
SUB_COMMAND = ("-m", "bistream", "serve")  # the same, in the folder of a checkout


def serve_command(repository: Path, *arguments: str, golden: bool = False) -> list[str]:
    """golden: speak the golden utterance before it is ready, which takes a second or two."""
    return [
        sys.executable,
        *SERVE,
        *("--model-repository", str(repository)),
        *("--tritonserver", str(TRITON_SERVER)),
        *("--backend-directory", str(TRITON_BACKENDS)),
        *("--log-file", str(repository.parent / "server.log")),
        *("--start-timeout-s", str(START_TIMEOUT_S), "--probe-timeout-s", str(PROBE_TIMEOUT_S)),
        *(() if "--direct" in arguments else ("--max-silence-s", LIMITS["session_idle_timeout_s"])),  # the gate's bound on the same
        "--free-ports",
        *(() if golden else ("--no-golden",)),
        *arguments,
    ]


class Keeper:
    """Context manager around a ready server, which it ends at exit if it still runs. stderr goes to a file that ``said`` reads."""

    def __init__(self, repository: Path, *arguments: str, program: tuple[str, ...] = SERVE, golden: bool = False) -> None:
        self._repository = repository
        self._ready = repository.parent / "ready.json"
        self._errors = repository.parent / "serve.log"
        command = serve_command(repository, "--ready-file", str(self._ready), *arguments, golden=golden)
        self._command = [command[0], *program, *command[1 + len(SERVE) :]]
        self.grpc_url = self.http_url = self.triton_url = ""

    def __enter__(self) -> Keeper:
        with self._errors.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(self._command, stderr=errors, cwd=ROOT)
        try:
            wait_for(lambda: self.is_announced() or self._process.poll() is not None, "the start", START_TIMEOUT_S)
            assert self.is_announced(), self._errors.read_text(encoding="utf-8")
            addresses = self.addresses()
            self.grpc_url, self.http_url, self.triton_url = addresses["grpc"], addresses["http"], addresses["triton"]
        except BaseException:
            self._end()
            raise
        return self

    def addresses(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self._ready.read_text(encoding="utf-8"))
        return found

    def is_announced(self) -> bool:
        try:
            return self._ready.read_text(encoding="utf-8") != ""
        except FileNotFoundError:  # also one that a restart has just removed
            return False

    def signal(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def said(self, words: str) -> bool:
        return words in self._errors.read_text(encoding="utf-8")

    def wait_said(self, words: str) -> None:
        wait_for(lambda: self.said(words), f"{words!r} in the log of serve.py")

    @property
    def pid(self) -> int:
        return self._process.pid

    def child(self, word: str) -> int:
        """The process that the keeper has started with ``word`` in its command line; waits until there is one."""
        found: list[int] = []

        def is_one() -> bool:
            parent_of = parents()
            found[:] = [process for process in processes_with(word) if parent_of.get(process) == self.pid]
            return len(found) == 1

        wait_for(is_one, f"one process of {word}")
        return found[0]

    @property
    def triton(self) -> int:
        return self.child("--model-repository")

    @property
    def gate(self) -> int:
        return self.child("--upstream")

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def check_end(self) -> None:
        """It ends by itself, with code 0, and leaves nothing behind."""
        assert self._process.wait(WAIT_TIMEOUT_S) == 0
        assert processes_with(str(self._repository)) == processes_with(self.triton_url) == []
        assert shared_memory_of(self._process.pid) == []
        assert not self._ready.exists() and not self.said("Traceback")

    def _end(self) -> None:
        """After a failed test: kill the keeper; the server dies with it."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()
