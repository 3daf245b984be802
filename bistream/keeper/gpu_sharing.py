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
from collections.abc import Iterator, Mapping
from pathlib import Path

from bistream.keeper.child import DIE_WITH_PARENT
from bistream.keeper.host import ServerError

logger = logging.getLogger(__name__)

MODES = ("auto", "on", "off")
CONTROL_PROGRAM = "nvidia-cuda-mps-control"
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"  # both variables: NVIDIA's manual of the Multi-Process Service
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
DEFAULT_PIPES = Path("/tmp/nvidia-mps")  # where CUDA looks for a daemon by default
NO_GPU = "no GPU can be used"
READY_TIMEOUT_S = 10.0
QUIT_TIMEOUT_S = 10.0
_RETRY_S = 0.1
_LISTENING_S = 1.0  # by then the daemon has its socket
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
    if mode == "off" or _is_shared_already():
        yield False
        return
    with contextlib.ExitStack() as stack:
        problem = _try_to_share(stack, probe)
        if problem is not None:
            stack.close()
            if mode == "on":
                raise ServerError(f"the GPU cannot be shared through MPS: {problem}; start with --mps off")
            if problem != NO_GPU:
                logger.info("the model processes take turns on the GPU: %s", problem)
        yield problem is None


def _is_shared_already() -> bool:
    return PIPE_VARIABLE in os.environ or (DEFAULT_PIPES / "control").exists()


def _try_to_share(stack: contextlib.ExitStack, probe: str) -> str | None:
    """Start the daemon and point CUDA to it; closing ``stack`` undoes both. Returns what prevents it, or None."""
    program = shutil.which(CONTROL_PROGRAM)
    if program is None:
        return f"{CONTROL_PROGRAM} is not installed" if _can_use_gpu(probe) else NO_GPU
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bistream-mps-", ignore_cleanup_errors=True))
    stack.enter_context(_environment({PIPE_VARIABLE: directory, LOG_VARIABLE: directory}))
    stack.enter_context(_daemon(program))
    began, is_known_alone = time.monotonic(), False
    while not (listens := (Path(directory) / "control").exists()) or not _can_use_gpu(probe):
        # Only now is it asked whether there is a GPU at all: opening one takes a second or two, at every start.
        if not is_known_alone and (listens or time.monotonic() > began + _LISTENING_S):
            if not _can_use_gpu(probe, through_daemon=False):
                return NO_GPU
            is_known_alone = True
        if time.monotonic() > began + READY_TIMEOUT_S:
            return "the daemon runs, but no GPU can be used through it"
        time.sleep(_RETRY_S)
    return None


def _can_use_gpu(probe: str, through_daemon: bool = True) -> bool:
    """through_daemon: through ours, where it runs."""
    environment = {name: value for name, value in os.environ.items() if through_daemon or name not in (PIPE_VARIABLE, LOG_VARIABLE)}
    command = [sys.executable, "-c", probe]
    try:
        return subprocess.run(command, env=environment, capture_output=True, timeout=READY_TIMEOUT_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, which its children inherit."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _daemon(program: str) -> Iterator[None]:
    daemon = subprocess.Popen(
        [sys.executable, "-c", DIE_WITH_PARENT, program, "-f"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C must reach the keeper alone
    )
    try:
        yield
    finally:
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            subprocess.run([program], input=b"quit\n", capture_output=True, timeout=QUIT_TIMEOUT_S, check=False)
            daemon.wait(QUIT_TIMEOUT_S)
        if daemon.poll() is None:
            daemon.kill()
        daemon.wait()
