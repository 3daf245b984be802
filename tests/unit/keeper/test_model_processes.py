"""Which model processes a server has and which have died, with real processes that only look like model processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bistream.keeper.model_processes import ModelProcess, ModelProcesses, process_state


@contextmanager
def stub(folder: Path, model: str, parent: int) -> Iterator[subprocess.Popen[bytes]]:
    script = folder / model / "1" / "model.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text("read line\n", encoding="utf-8")
    arguments = ["/backends/triton_python_backend_stub", str(script), "region", "1", "1", str(parent), "lib", "336", "name"]
    with subprocess.Popen(arguments, executable="/bin/sh", stdin=subprocess.PIPE) as process:
        try:
            while not Path(f"/proc/{process.pid}/cmdline").read_bytes():  # empty at the moment of its exec
                pass
            yield process
        finally:
            process.kill()


def kill(process: subprocess.Popen[bytes]) -> None:
    """It is dead afterwards, and not reaped."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_a_dead_process_is_reported_once_with_its_model(tmp_path: Path) -> None:
    processes = ModelProcesses(os.getpid())
    with (
        stub(tmp_path, "token2wav", os.getpid()) as one,
        stub(tmp_path, "llm_bistream", os.getpid()) as other,
        stub(tmp_path, "foreign", 1),
    ):
        processes.find()
        assert set(processes.living) == {ModelProcess(one.pid, "token2wav"), ModelProcess(other.pid, "llm_bistream")}
        assert processes.take_dead() == []
        kill(one)
        assert processes.take_dead() == [ModelProcess(one.pid, "token2wav")] and processes.take_dead() == []
        assert processes.living == (ModelProcess(other.pid, "llm_bistream"),)


def test_a_process_that_was_reaped_at_once_is_dead_too(tmp_path: Path) -> None:
    processes = ModelProcesses(os.getpid())
    with stub(tmp_path, "audio_tokenizer", os.getpid()) as process:
        processes.find()
        process.kill()
        process.wait()
        assert [dead.model for dead in processes.take_dead()] == ["audio_tokenizer"]


def test_a_process_that_is_started_later_is_found_by_the_next_look(tmp_path: Path) -> None:
    processes = ModelProcesses(os.getpid())
    processes.find()
    with stub(tmp_path, "audio_tokenizer", os.getpid()) as process:
        assert not processes.living
        processes.find()
        assert set(processes.living) == {ModelProcess(process.pid, "audio_tokenizer")}


def test_states_are_those_of_the_process_table() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_state(process.pid) == "Z"
    assert process_state(process.pid) is None and process_state(os.getpid()) in ("R", "S")
