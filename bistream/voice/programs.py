"""Which program runs a network of the voice: onnxruntime its file, or PyTorch our form of it. Loads torch only where it may be used.

The parameters ``speech_tokenizer`` and ``speaker_encoder`` say which; ``auto`` is PyTorch on a GPU, where the file holds the network that
we know, and onnxruntime otherwise.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bistream.errors import CheckpointError
from bistream.processes.start_phases import phase
from bistream.store import findings
from bistream.store.fingerprint import Fingerprint, code_hash, file_hash, versions

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)
Network = TypeVar("Network")


def in_torch(
    parameter: str,
    chosen: str,
    device_name: str,
    file_name: str,
    load: Callable[[torch.device], Network],
    before_cpu: Callable[[], None] = lambda: None,
) -> Network | None:
    """``load``'s network, or ``None``: onnxruntime is to run the file. One line of the log says which, and why.

    chosen: value of the parameter. device_name: auto | cpu | cuda | cuda:N. load raises ``CheckpointError`` for a file with another network
    than the known one, which is an error unless the choice was ``auto``. before_cpu: called before it loads onto the CPU.
    """
    is_auto = chosen == "auto"
    if chosen == "onnx" or (is_auto and not may_use_cuda(device_name)):
        return None
    with phase("imports"):
        from bistream.gpu.device import open_device, resolve_device  # noqa: PLC0415  (loads torch, which onnxruntime does without)

    device = resolve_device(device_name)
    if device.type == "cpu":
        if is_auto:
            return None
        before_cpu()
    open_device(device)
    try:
        network = load(device)
    except CheckpointError as error:
        if not is_auto:
            raise
        logger.warning("onnxruntime runs %s: %s", file_name, error.sentence)
        return None
    logger.info("%s runs in PyTorch on %s%s", file_name, device, f" ({parameter} is auto)" if is_auto else "")
    return network


def check_once(kind: str, path: Path, program: str, device: torch.device, check: Callable[[], None]) -> None:
    """``check``, unless an earlier start has found that this program computes on this device what the file at ``path`` says.

    kind: of finding. Raises what ``check`` raises.
    """
    from bistream.gpu.device import device_name  # noqa: PLC0415

    made = {"file": file_hash(path), "network": program, "device": device_name(device), "code": code_hash()}
    facts = Fingerprint(made | versions("torch", "onnxruntime"))
    if findings.recall(kind, facts):
        return
    check()
    findings.keep(kind, facts, True)


def may_use_cuda(device_name: str) -> bool:
    """Whether it is worth while to load torch in order to look for a GPU."""
    if device_name != "auto":
        return device_name.startswith("cuda")
    try:
        ctypes.CDLL("libcuda.so.1")  # the driver's library, without which there is no CUDA
    except OSError:
        return False
    return True
