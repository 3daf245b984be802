"""Compiles the kernels of a stage's launches in many processes at once, before the stage launches them one after the other.

Triton compiles a kernel when it is first launched, in the process that launches it: at full size 157 kernels, a hundred seconds of one
core. Here the launches are made once without their kernels; a hook of Triton's notes what each would compile. Worker processes
(``compile_worker``, which need neither a GPU nor PyTorch) compile these, and the launches then find them in Triton's cache on disk.

Triton finds a kernel in its cache under a hash of the sources, and the hash of some kernels depends on which others were hashed before
(3.6: those that call the same functions). So all processes hash them in one order, that of the launches, which the marker of a finished
compilation keeps for later starts.

Nothing depends on it. What no worker has compiled is compiled at its launch, and a change of Triton's that breaks this costs time alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton import knobs

from bistream.gpu.compile_worker import hash_source
from bistream.processes.start_phases import phase
from bistream.processes.whole_file import write_whole
from bistream.store.fingerprint import Fingerprint, code_hash, versions

logger = logging.getLogger(__name__)

WORKER = "bistream.gpu.compile_worker"
MOST_WORKERS = 16  # each takes 0.4 GB while it compiles, and two models start at the same time
Kernel = tuple[str, str]  # module, name
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_MARKER_SUFFIX = ".compiled"
_hashed: list[Kernel] = []  # in this process, in order


@dataclass(frozen=True)
class Wanted:
    """One compilation: a kernel by module and name, and Triton's description of it (``JITFunction.preload``)."""

    module: str
    name: str
    description: str


def compile_ahead(what: str, launch: Callable[[], object], facts: Mapping[str, str]) -> None:
    """Compile what ``launch`` launches, unless a start with the same facts, program, GPU and versions has done so.

    what: for the log. launch: makes every launch that the stage will make, on the current stream; what it computes is not used, and the
    kernels are left out. facts: what decides which kernels there are, besides the program: the device, sizes of networks and batches.
    """
    try:
        target = triton.runtime.driver.active.get_current_target()
        marker = _marker(Fingerprint({**facts, "what": what, "target": str(target), "code": code_hash(), **versions("triton", "torch")}))
        with _alone(marker):
            if (kernels := _read(marker)) is not None:
                _hash_in_order(kernels)
                return
            _compile(what, launch, target, marker)
    except Exception as error:  # of Triton's inside; the launches themselves will say what is wrong
        logger.warning("%s: its kernels are compiled one after the other (%s: %s)", what, type(error).__name__, error)


def _compile(what: str, launch: Callable[[], object], target: Any, marker: Path) -> None:
    with phase(f"{what}: launches counted"):
        wanted = wanted_by(launch)
    kernels = [(one.module, one.name) for one in wanted]
    _hash_in_order(kernels)
    workers = min(len(os.sched_getaffinity(0)), len(wanted), MOST_WORKERS)
    logger.info("%s: compiling %d kernels in %d processes", what, len(wanted), workers)
    with phase(f"{what}: {len(wanted)} kernels compiled in {workers} processes"):
        failures = compile_all(wanted, [str(target.backend), str(target.arch), str(target.warp_size)], workers, what, _hashed)
    if failures:
        logger.warning("%s: %d kernels are compiled at their launch (%s)", what, len(failures), failures[0])
    else:
        _mark(marker, kernels)


def wanted_by(launch: Callable[[], object]) -> list[Wanted]:
    """What the launches inside ``launch`` would compile, each once; none of them compiles or runs anything."""
    found: dict[tuple[str, str, str], Wanted] = {}

    def note(*, key: str, fn: Any, compile: Mapping[str, Any], **_: Any) -> bool:
        found.setdefault((fn.module, fn.name, str(key)), Wanted(fn.module, fn.name, compile["specialization_data"]))
        return True  # "leave this launch out"

    before = knobs.runtime.jit_cache_hook
    knobs.runtime.jit_cache_hook = note
    try:
        launch()
    finally:
        knobs.runtime.jit_cache_hook = before
    return list(found.values())


def compile_all(wanted: Sequence[Wanted], target: Sequence[str], workers: int, what: str = "", order: Sequence[Kernel] = ()) -> list[str]:
    """Why compilations failed, a sentence each; empty if all are in Triton's cache.

    target: the arguments of ``compile_worker``. order: in which the kernels' sources are hashed first.
    """
    waiting = list(reversed(wanted))  # popped from the end by every thread
    failures: list[str] = []
    done = 0

    def work(_: int) -> None:
        nonlocal done
        with _start_worker(target) as process:
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(OSError):  # the next line is not answered then
                process.stdin.write(json.dumps(list(order)) + "\n")
            while True:
                try:
                    one = waiting.pop()
                except IndexError:
                    process.stdin.close()
                    return
                try:
                    process.stdin.write(json.dumps([one.module, one.name, one.description]) + "\n")
                    process.stdin.flush()
                    answer = process.stdout.readline()
                except OSError as error:
                    answer = str(error)
                    with contextlib.suppress(OSError):  # closing writes what is left of the line once more
                        process.stdin.close()
                if answer.strip() != "ok":
                    failures.append(f"{one.name}: {answer.strip() or 'its process has ended'}")
                if not answer.endswith("\n"):
                    return
                done += 1
                if done % max(1, len(wanted) // 4) == 0:
                    logger.info("%s: %d of %d kernels compiled", what, done, len(wanted))

    with ThreadPoolExecutor(max(1, workers), thread_name_prefix="compile-ahead") as pool:
        list(pool.map(work, range(workers)))
    return failures + [f"{one.name}: no process was left for it" for one in waiting]


def _start_worker(target: Sequence[str]) -> subprocess.Popen[str]:
    """It ends when its input does, so it cannot outlive this process."""
    # Inside Triton's Python backend sys.executable may be empty; python3 on PATH is then the interpreter of the same environment.
    python = sys.executable or shutil.which("python3") or "python3"
    path = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [python, "-m", WORKER, *target],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    )


def _hash_in_order(kernels: Sequence[Kernel]) -> None:
    """Those that are new to this process."""
    for kernel in dict.fromkeys(kernels):
        if kernel not in _hashed:
            hash_source(*kernel)
            _hashed.append(kernel)


def _marker(facts: Fingerprint) -> Path:
    """Beside what was compiled: whoever empties the cache removes it, too."""
    return Path(knobs.cache.dir) / f"bistream-{facts.digest}{_MARKER_SUFFIX}"


@contextlib.contextmanager
def _alone(marker: Path) -> Iterator[None]:
    """Several servers may start at the same time, with one cache: the first one compiles, the others wait. Where it cannot be locked, each
    compiles."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            marker.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(marker.with_suffix(".lock").open("w")), fcntl.LOCK_EX)
        yield


def _read(marker: Path) -> list[Kernel] | None:
    """``None`` where there is none, or it is damaged."""
    try:
        return [(str(module), str(name)) for module, name in json.loads(marker.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return None


def _mark(marker: Path, kernels: Sequence[Kernel]) -> None:
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        write_whole(marker, json.dumps(list(dict.fromkeys(kernels))).encode())
    except OSError as error:
        logger.warning("%s cannot be written (%s); the next start looks for its kernels again", marker, error.strerror)
