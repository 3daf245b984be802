"""Common start-up of every model process: checks, output, logging, parameters.

Called from ``initialize`` before any heavy import, because libraries read their thread settings when they are imported.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from bistream.checkpoints.files import family_of
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError, ConfigError
from bistream.metrics.session_log import write_plain_lines

logger = logging.getLogger(__name__)

# Parameters that Triton itself reads from config.pbtxt.
_SERVER_PARAMETERS = frozenset({"EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS"})
NICENESS = 5  # a quarter of the time where the cores are contended; 10 would be a tenth, and new voices would wait for minutes
_LOG_LEVELS = ("debug", "info", "warning", "error")


def check_numpy(version: str = np.__version__) -> None:
    """Raises ``ConfigError`` on numpy 2: the Python backend of this server silently corrupts every tensor with it."""
    if int(version.split(".")[0]) >= 2:
        raise ConfigError(f"numpy {version} is installed, but this Triton server corrupts tensors with numpy 2; install 'numpy>=1.26,<2'.")


def runtime_config(model_config: str) -> RuntimeConfig:
    """From ``args["model_config"]``, the JSON that Triton hands to ``initialize``. Raises ``ConfigError``."""
    parameters: Mapping[str, Mapping[str, str]] = json.loads(model_config).get("parameters", {})
    values = {key: item["string_value"] for key, item in parameters.items() if key not in _SERVER_PARAMETERS}
    config = RuntimeConfig.from_strings(values)
    if config.model_family and config.model_family != (here := family_of(config.model_dir).name):
        raise ConfigError(f"Parameter 'model_family' is {config.model_family!r}, but model_dir holds {here}; make the repository again.")
    return config


def is_decoupled(model_config: str) -> bool:
    return bool(json.loads(model_config).get("model_transaction_policy", {}).get("decoupled", False))


def prepare_process(config: RuntimeConfig, model_name: str) -> None:
    """UTF-8 output (the stub's default is ASCII), logging to stderr, stacks of all threads on a crash, CPU threads."""
    check_numpy()
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    if config.log_level not in _LOG_LEVELS:
        raise ConfigError(f"Parameter 'log_level' is {config.log_level!r}; set it to {', '.join(_LOG_LEVELS)}.")
    logging.basicConfig(
        stream=sys.stderr,
        level=config.log_level.upper(),
        format=f"%(asctime)s %(levelname)s {model_name} %(name)s: %(message)s",
        force=True,
    )
    write_plain_lines(sys.stderr)
    if config.num_threads:
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[variable] = str(config.num_threads)


def yield_cores() -> None:
    """From now on this thread, and those that it starts, take only the cores that other processes leave, and a small share beside them.

    For models whose answers have no deadline. Linux counts niceness per thread: call it where the threads that compute begin.
    """
    os.nice(NICENESS)
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # forbidden in some containers
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def yield_gpu() -> None:
    """Of this process and those that share a GPU with it through MPS, the others' kernels go first. Call it before CUDA is loaded.

    Source: NVIDIA's manual of the Multi-Process Service, CUDA_MPS_CLIENT_PRIORITY (0: normal, 1: below). Without MPS it does nothing.
    """
    os.environ.setdefault("CUDA_MPS_CLIENT_PRIORITY", "1")


def settle_memory() -> None:
    """Exclude all loaded objects from garbage collection: a full collection that includes the libraries' objects would stop all
    threads for about 0.2 s while sessions are running.
    """
    gc.collect()
    gc.freeze()


def end_when_useless(healthy: Callable[[], bool], interval_s: float = 1.0, stuck_after_s: float = 30.0) -> None:
    """End this process when the server has died (running threads would keep it alive, holding memory and the GPU), or when it is
    no longer ``healthy``: after an engine or GPU failure only a new process helps, and the supervisor detects the missing one.

    Also when no Python code has run for ``stuck_after_s``: the stub can block while holding the GIL, for example in ``execute``
    waiting for a server that has died. A timer thread of ``faulthandler`` that needs no GIL detects this; this one keeps resetting it.
    """
    server = os.getppid()

    def watch() -> None:
        while os.getppid() == server and healthy():
            faulthandler.dump_traceback_later(stuck_after_s, exit=True)
            time.sleep(interval_s)
        if os.getppid() == server:
            logger.error("this process can no longer compute and ends itself")
            time.sleep(interval_s)  # until the last error messages of its sessions are sent
        os._exit(1)

    threading.Thread(target=watch, name="end-when-useless", daemon=True).start()


@contextmanager
def refusing_to_load(pb_utils: Any) -> Iterator[None]:
    """Any failure inside makes the model refuse to load, with one sentence in the server's log."""
    try:
        yield
    except BistreamError as error:
        raise pb_utils.TritonModelException(f"{error.code}: {error.sentence}") from None
    except Exception as error:
        logger.exception("the model could not be loaded")
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported here
            raise pb_utils.TritonModelException(
                "The model does not fit into memory; lower max_sessions, max_session_tokens, kv_cache_tokens or flow_state_mb."
            ) from None
        sentence = " ".join(str(error).split()) or type(error).__name__
        raise pb_utils.TritonModelException(f"The model could not be loaded ({type(error).__name__}: {sentence}).") from None
