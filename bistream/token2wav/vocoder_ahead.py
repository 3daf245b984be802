"""At the first start on a machine, the vocoder's recorded graphs are made in a process of their own while this one makes the flow's.

What takes long is PyTorch's compiler (Inductor), one function after the other, 20 to 44 s. What the process has compiled stays in its
cache on disk, where this one finds it. Only the causal vocoder's graphs need it: Triton kernels are compiled by ``gpu/compile_ahead``.

    python -m bistream.token2wav.vocoder_ahead < SETTINGS        the fields of ``RuntimeConfig`` as JSON; called by ``compiling``
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bistream.checkpoints.config import CausalVocoderConfig, CheckpointConfig
from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
from bistream.gpu.device import device_name, resolve_device
from bistream.gpu.tier import Tier, TierChoice
from bistream.processes.start_phases import phase
from bistream.store.fingerprint import Fingerprint, code_hash, versions

logger = logging.getLogger(__name__)

LONGEST_S = 300.0  # for which a start waits for the process once the flow is ready
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def compiling(config: RuntimeConfig, checkpoint: CheckpointConfig, choice: TierChoice) -> Iterator[None]:
    """Inside, the process runs, where it is of use; after it, what it could compile is compiled. config, choice: of the vocoder."""
    is_of_use = choice.tier is Tier.GRAPHS and isinstance(checkpoint.vocoder, CausalVocoderConfig)
    marker = _marker(config, checkpoint) if is_of_use else None
    process = None if marker is None or marker.is_file() else _start(config)
    if marker is None or process is None:
        yield
        return
    try:
        yield
    except BaseException:
        process.kill()
        raise
    finally:
        with phase("vocoder: waiting for the process that compiles it"), process:
            _wait(process)
    if process.returncode == 0:
        _mark(marker)
    else:
        logger.warning("the vocoder could not be compiled in a process of its own (exit code %d); it is compiled here", process.returncode)


def _marker(config: RuntimeConfig, checkpoint: CheckpointConfig) -> Path:
    """Beside what is compiled: whoever empties Inductor's cache removes it, too."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # noqa: PLC0415  (loads the compiler, which these graphs need)

    facts = {"sizes": repr(checkpoint.vocoder), "GPU": device_name(resolve_device(config.device)), "code": code_hash()}
    return Path(cache_dir()) / f"bistream-vocoder-{Fingerprint({**facts, **versions('torch', 'triton')}).digest}.compiled"


def _start(config: RuntimeConfig) -> subprocess.Popen[str] | None:
    """``None`` where it cannot be started. It ends with this process at the latest: then its input does."""
    path = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]))
    try:
        process = subprocess.Popen(
            [sys.executable or shutil.which("python3") or "python3", "-m", __name__],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            encoding="utf-8",
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(dataclasses.asdict(config)) + "\n")
        process.stdin.flush()
    except OSError as error:
        logger.warning("no process can be started for the vocoder (%s); it is compiled here", error)
        return None
    logger.info("the vocoder is compiled in a process of its own")
    return process


def _wait(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _mark(marker: Path) -> None:
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError as error:
        logger.warning("%s cannot be written (%s); the next start compiles in a process of its own again", marker, error.strerror)


def main() -> int:
    """In the process: load the vocoder, which compiles and records all it needs."""
    config = RuntimeConfig(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_input, daemon=True).start()
    from bistream.mel2wav.factory import make_vocoder  # noqa: PLC0415  (loads torch)

    make_vocoder(config, read_config(config.model_dir))
    return 0


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
