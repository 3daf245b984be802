"""The model processes of a server, with real processes that only look like them: which exist and which have died. The health flag of a
living one is set repeatedly; dead ones and memory of another layout are left alone."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bistream.keeper.model_control import ModelControl
from bistream.keeper.served_models import ModelProcess, ServedModels, process_state

CONTROL = 336  # handle of the control block, as the server passes it
FLAG = CONTROL + 16
QUEUES = (496, 8688, 16880, 25072, 33264)
REGION_BYTES = 65536


def region(directory: Path, name: str, queues: tuple[int, ...] = QUEUES, flag: int = 0) -> Path:
    """Shared memory as the server lays it out: four flags, two mutexes, the queues' handles."""
    memory = bytearray(REGION_BYTES)
    memory[FLAG : FLAG + 4] = bytes((flag, 0, 0, 1))
    for index, handle in enumerate(queues):
        place = FLAG + 88 + 8 * index
        memory[place : place + 8] = handle.to_bytes(8, "little")
    path = directory / name
    path.write_bytes(memory)
    return path


@contextmanager
def stub(path: Path, parent: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like a model process from outside and waits until it is ended."""
    script = path.parent / path.stem / "1" / "model.py"
    script.parent.mkdir(parents=True)
    script.write_text("read line\n", encoding="utf-8")
    arguments = ["/backends/triton_python_backend_stub", str(script), path.name, "1", "1", str(parent), "lib", str(CONTROL), "name"]
    with subprocess.Popen(arguments, executable="/bin/sh", stdin=subprocess.PIPE) as process:
        try:
            while not Path(f"/proc/{process.pid}/cmdline").read_bytes():  # empty at the moment of its exec
                time.sleep(0.001)
            yield process
        finally:
            process.kill()


@contextmanager
def serving(directory: Path) -> Iterator[ServedModels]:
    one = ServedModels(ModelControl("127.0.0.1:1", "", 1.0), os.getpid(), directory, shared_memory=directory)
    one.find()
    try:
        yield one
    finally:
        one.stop()


def test_a_dead_process_is_reported_once_with_its_model_reaped_or_not(tmp_path: Path) -> None:
    names = ("token2wav", "llm_bistream", "audio_tokenizer", "foreign")
    one, other, late, foreign = (region(tmp_path, f"{name}.region") for name in names)
    with serving(tmp_path) as models, stub(one, os.getpid()) as first, stub(other, os.getpid()) as second, stub(foreign, 1):
        models.find()
        assert set(models.living) == {ModelProcess(first.pid, "token2wav"), ModelProcess(second.pid, "llm_bistream")}
        assert models.take_dead() == []
        first.kill()
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
        assert process_state(first.pid) == "Z"
        assert models.take_dead() == ["token2wav"] and models.take_dead() == []
        second.kill()
        second.wait()
        assert models.take_dead() == ["llm_bistream"] and not models.living
        with stub(late, os.getpid()) as third:
            models.find()
            assert set(models.living) == {ModelProcess(third.pid, "audio_tokenizer")}
    assert process_state(first.pid) is None and process_state(os.getpid()) in ("R", "S")


def is_set(path: Path) -> bool:
    return path.read_bytes()[FLAG] == 1


def clear(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(FLAG)
        file.write(b"\0")


def wait_until_set(path: Path) -> None:
    deadline = time.monotonic() + 240
    while not is_set(path):
        assert time.monotonic() < deadline, f"the flag of {path.name} was not set"
        time.sleep(0.001)


def test_the_flag_of_a_living_process_is_set_whenever_the_server_has_cleared_it(tmp_path: Path) -> None:
    """Its memory is closed to other users: the server gives it the mode 0644, whatever its umask."""
    memory = region(tmp_path, "early.region")
    memory.chmod(0o644)
    before = memory.read_bytes()
    with stub(memory, os.getpid()), serving(tmp_path):
        for _ in range(3):
            clear(memory)
            wait_until_set(memory)
    after = memory.read_bytes()
    assert [index for index in range(REGION_BYTES) if before[index] != after[index]] == [FLAG]
    assert stat.S_IMODE(memory.stat().st_mode) == 0o600


def test_nothing_is_written_after_a_process_has_died_or_the_pulse_was_stopped(tmp_path: Path) -> None:
    dying, living = region(tmp_path, "dying.region"), region(tmp_path, "living.region")
    with stub(dying, os.getpid()) as process, stub(living, os.getpid()):
        with serving(tmp_path):
            wait_until_set(dying)
            process.kill()
            process.wait()
            for _ in range(3):  # the first round may have begun before the process died
                clear(living)
                clear(dying)
                wait_until_set(living)
            assert not is_set(dying)
        clear(living)
    assert not is_set(living)


@pytest.mark.parametrize(
    "strange",
    [
        {"queues": (496, 496, 16880, 25072, 33264)},
        {"queues": (REGION_BYTES, 8688, 16880, 25072, 33264)},
        {"flag": 7},
    ],
)
def test_memory_with_another_layout_and_processes_of_other_servers_are_left_alone(
    tmp_path: Path, strange: dict[str, int | tuple[int, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    unknown = region(tmp_path, "unknown.region", **strange)  # type: ignore[arg-type]
    foreign, known = region(tmp_path, "foreign.region"), region(tmp_path, "known.region")
    before = unknown.read_bytes()
    with stub(unknown, os.getpid()) as process, stub(foreign, 1), stub(known, os.getpid()), serving(tmp_path) as one:
        one.find()
        wait_until_set(known)
        clear(known)
        wait_until_set(known)
    assert unknown.read_bytes() == before and not is_set(foreign)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1 and str(process.pid) in warnings[0] and "unknown layout" in warnings[0]
