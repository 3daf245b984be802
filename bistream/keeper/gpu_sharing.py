"""Lets the server's model processes use the GPU concurrently, through NVIDIA's Multi-Process Service (MPS).

Without it the GPU runs the kernels of one process at a time, in time slices of about a millisecond: token2wav waits while the
language model runs, although the small steps of the language model leave most multiprocessors idle (measured in ``docs/log/gpu.md``).
The MPS daemon comes with the driver; it runs as a child of the keeper, on its own socket, so that it neither disturbs other
programs nor outlives the keeper. Used by ``scripts/serve.py``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bistream.keeper.child import OutputCopy, spawn
from bistream.keeper.host import ServerError

logger = logging.getLogger(__name__)

MODES = ("auto", "on", "off")
CONTROL_PROGRAM = "nvidia-cuda-mps-control"
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"  # both variables: NVIDIA's manual of the Multi-Process Service
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
DEFAULT_PIPES = Path("/tmp/nvidia-mps")  # where CUDA looks for a daemon by default
DRIVER = Path("/dev/nvidiactl")  # there on hosts with a GPU; opening one to find out takes a second or two
READY_TIMEOUT_S = QUIT_TIMEOUT_S = 10.0
_RETRY_S = 0.1
DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
_QUERY = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
_QUERY_TIMEOUT_S = 60.0  # the driver may have to be loaded
# Exit code 0: the first GPU can be used.
_USE_GPU = (
    "import ctypes,sys\n"
    "try: cuda = ctypes.CDLL('libcuda.so.1')\n"
    "except OSError: sys.exit(1)\n"
    "sys.exit(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0))\n"
)


@contextlib.contextmanager
def shared_gpu(mode: str = "auto", probe: str = _USE_GPU) -> Iterator[bool]:
    """Processes started within this context share the GPU; yields whether a daemon of ours makes them do so.

    auto: if the daemon is installed, works with a GPU and is not running already. on: the same, but ``ServerError`` if it is
    impossible. off: never. probe: Python code whose exit code 0 means that the GPU can be used.
    """
    if mode == "off" or PIPE_VARIABLE in os.environ or (DEFAULT_PIPES / "control").exists() or (mode == "auto" and not DRIVER.exists()):
        yield False
        return
    with contextlib.ExitStack() as stack:
        problem = _try_to_share(stack, probe)
        if problem is not None:
            stack.close()
            if mode == "on":
                raise ServerError(f"the GPU cannot be shared through MPS: {problem}; start with --mps off")
            logger.info("the model processes take turns on the GPU: %s", problem)
        yield problem is None


def _try_to_share(stack: contextlib.ExitStack, probe: str) -> str | None:
    """Start the daemon and point CUDA to it; closing ``stack`` undoes both. Returns what prevents it, or None."""
    program = shutil.which(CONTROL_PROGRAM)
    if program is None:
        return f"{CONTROL_PROGRAM} is not installed"
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bistream-mps-", ignore_cleanup_errors=True))
    for name in (PIPE_VARIABLE, LOG_VARIABLE):
        os.environ[name] = directory  # for all that is started from here on
        stack.callback(os.environ.pop, name, None)
    stack.enter_context(_daemon(program))
    give_up_at = time.monotonic() + READY_TIMEOUT_S
    while not (Path(directory) / "control").exists() or not _can_use_gpu(probe):
        if time.monotonic() > give_up_at:
            return "the daemon runs, but no GPU can be used through it"
        time.sleep(_RETRY_S)
    return None


def _can_use_gpu(probe: str) -> bool:
    try:
        return subprocess.run([sys.executable, "-c", probe], capture_output=True, timeout=READY_TIMEOUT_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@contextlib.contextmanager
def _daemon(program: str) -> Iterator[None]:
    daemon = spawn([program, "-f"])
    OutputCopy(daemon, lambda line: None)
    try:
        yield
    finally:
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            subprocess.run([program], input=b"quit\n", capture_output=True, timeout=QUIT_TIMEOUT_S, check=False)
            daemon.wait(QUIT_TIMEOUT_S)
        daemon.kill()
        daemon.wait()


# One GPU for each server of a host (``scripts/serve_gpus.py``), by a name that CUDA accepts alone


def installed_gpus() -> list[str]:
    """UUIDs in the order of the PCI bus; none without a driver."""
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.startswith("GPU-")] if done.returncode == 0 else []


def visible_gpus(environment: Mapping[str, str], installed: Callable[[], list[str]] = installed_gpus) -> list[str]:
    """UUIDs where they are known: a number would mean another GPU to a process behind the MPS daemon of that GPU, which counts from 0 again
    (NVIDIA's manual of the Multi-Process Service)."""
    found = installed()
    chosen = environment.get(DEVICES_VARIABLE)
    if chosen is None:
        return found
    names: list[str] = []
    for name in map(str.strip, chosen.split(",")):
        if not name or name.startswith("-"):  # CUDA ignores what follows an invalid one
            break
        names.append(found[int(name)] if name.isdigit() and int(name) < len(found) else name)
    return names


def deal_out(gpus: list[str], servers: int | None) -> list[str | None]:
    """The GPU of each server; ``None`` without any. servers: how many, or one for each GPU."""
    count = len(gpus) if servers is None else servers
    return [gpus[number % len(gpus)] if gpus else None for number in range(count)]
