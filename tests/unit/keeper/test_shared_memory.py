"""Shared-memory files: claimed by a live keeper, swept when it is dead. Keepers are real processes here, some alone in a pid namespace."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bistream.keeper.shared_memory import SharedMemoryClaim, sweep_shared_memory

ROOT = Path(__file__).resolve().parents[3]
# Sweeps, claims, makes a file as the server would, starts a child that outlives it, says its prefix, and waits for the end of its input.
KEEPER = """
import subprocess, sys
from pathlib import Path
from bistream.keeper.shared_memory import SharedMemoryClaim, sweep_shared_memory
directory = Path(sys.argv[1])
sweep_shared_memory(directory)
claim = SharedMemoryClaim(directory)
(directory / f"{claim.prefix}tensors").write_text("x")
started = "import sys; print(flush=True); sys.stdin.read()"  # from here on it opens and closes nothing
child = subprocess.Popen([sys.executable, "-c", started], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(claim.prefix, child.pid, flush=True)
sys.stdin.read()
claim.release()
child.communicate()
"""
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")
CAN_UNSHARE = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


class Keeper:
    def __init__(self, directory: Path, prefix_command: tuple[str, ...]) -> None:
        self.directory = directory
        self.process = subprocess.Popen(
            [*prefix_command, sys.executable, "-c", KEEPER, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        self.prefix, self.child = self.process.stdout.readline().split()

    def end(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0

    def kill(self) -> None:
        """SIGKILL, to ``unshare`` and with it to the keeper where there is one."""
        self.process.kill()
        self.process.wait()  # before its standard input is closed: it would end by itself then, and tidy up
        self.process.communicate()
        with (self.directory / f"{self.prefix}lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # returns when the keeper is gone


@contextmanager
def keeper(directory: Path, prefix_command: tuple[str, ...]) -> Iterator[Keeper]:
    one = Keeper(directory, prefix_command)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.kill()


def names(directory: Path, prefix: str) -> set[str]:
    return {path.name.removeprefix(prefix) for path in directory.glob(f"{prefix}*")}


FILES = {"lock", "tensors", "control"}


def model_process(folder: Path, prefix: str) -> subprocess.Popen[bytes]:
    """With a command line like a stub's: program, model.py, shared memory, two sizes, parent, libraries, offset, name."""
    model = folder / "model.py"
    model.write_text("import sys; print(flush=True); sys.stdin.read()")
    words = ["/backends/triton_python_backend_stub", str(model), f"{prefix}region", "1048576", "1048576", "1", "/backends", "336", "x"]
    process = subprocess.Popen(words, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # a process that has only just begun its program has no command line yet, and nobody would find it
    return process


def test_files_and_model_processes_of_a_killed_keeper_go_and_those_of_a_live_one_stay(tmp_path: Path) -> None:
    shared = tmp_path / "shm"
    shared.mkdir()
    with keeper(shared, ()) as killed, keeper(shared, ()) as living:
        sweep_shared_memory(shared)
        assert all(names(shared, one.prefix) == FILES for one in (killed, living))
        inherited = [os.readlink(path) for path in Path(f"/proc/{living.child}/fd").iterdir()]
        assert inherited and not any(str(shared) in file for file in inherited), "a child would keep the lock of a dead keeper"
        with model_process(tmp_path, killed.prefix) as orphan, model_process(tmp_path, living.prefix) as child:
            killed.kill()
            assert names(shared, killed.prefix) == FILES
            sweep_shared_memory(shared)
            assert orphan.wait(240) == -signal.SIGKILL and child.poll() is None
            child.kill()
        assert names(shared, killed.prefix) == set() and names(shared, living.prefix) == FILES
        living.end()
    assert list(shared.iterdir()) == []


@pytest.mark.skipif(not CAN_UNSHARE, reason="pid namespaces cannot be made here")
def test_a_keeper_of_the_same_process_id_is_another_one(tmp_path: Path) -> None:
    """As those of containers are, each alone in its pid namespace."""
    with keeper(tmp_path, NAMESPACE) as first:
        first.kill()
    with keeper(tmp_path, NAMESPACE) as second:
        assert first.prefix.split("_")[1] == second.prefix.split("_")[1]
        assert names(tmp_path, first.prefix) == set() and names(tmp_path, second.prefix) == FILES
        second.end()


def test_other_names_and_links_are_left_alone(tmp_path: Path) -> None:
    """A lock file with a shorter name must not stand for the files of keepers whose names begin with it."""
    names = ["bistream_1_0123456789abcdef_x", "bistream_1_lock", "bistream_lock", "bistream_1_0123456789abcdef_x_lock", "someone_else_lock"]
    for name in [*names, "bistream_1_0123456789abcdef_tensors"]:
        (tmp_path / name).touch()
    (tmp_path / "bistream_1_0123456789abcdef_lock").symlink_to(tmp_path / "someone_else_lock")
    before = sorted(tmp_path.iterdir())
    sweep_shared_memory(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_many_sweepers_and_claims_at_once(tmp_path: Path) -> None:
    """However they interleave, no live claim loses a file and nothing of the abandoned ones stays."""
    for _ in range(5):
        abandon(tmp_path)
    losses: list[set[str]] = []

    def claim_and_sweep() -> None:
        for _ in range(10):
            claim = SharedMemoryClaim(tmp_path)
            (tmp_path / f"{claim.prefix}tensors").touch()
            sweep_shared_memory(tmp_path)
            if names(tmp_path, claim.prefix) != {"lock", "control", "tensors"}:
                losses.append(names(tmp_path, claim.prefix))
            claim.release()

    threads = [threading.Thread(target=claim_and_sweep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert losses == [] and list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_removed_keeps_its_lock_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a later sweep can try again."""
    abandoned = abandon(tmp_path)
    monkeypatch.setattr(shutil, "rmtree", lambda path: None)
    sweep_shared_memory(tmp_path)
    assert names(tmp_path, abandoned) == {"lock", "control"}
    monkeypatch.undo()
    sweep_shared_memory(tmp_path)
    assert list(tmp_path.iterdir()) == []


def abandon(directory: Path) -> str:
    """The prefix of files whose keeper is dead."""
    claim = SharedMemoryClaim(directory)
    (directory / f"{claim.prefix}tensors").touch()
    assert claim._lock is not None
    os.close(claim._lock)
    return claim.prefix
