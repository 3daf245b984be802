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

from bistream.config import RuntimeConfig
from bistream.errors import CheckpointError
from bistream.processes.start_phases import phase
from bistream.store import findings
from bistream.store.fingerprint import Fingerprint, code_hash, file_hash, versions

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)
Network = TypeVar("Network")


def open_network(
    name: str,
    chosen: str,
    config: RuntimeConfig,
    file_name: str,
    in_torch: Callable[[torch.device], Network],
    in_onnxruntime: Callable[[], Network],
    compare: Callable[[Network, Network], None],
    before_cpu: Callable[[], None],
) -> Network:
    """A network in the program that ``chosen``, the value of its parameter, asks for. One line of the log says which, and why.

    name: for messages; with an underline that of the parameter. in_torch raises ``CheckpointError`` for a file with another network than
    the known one, and so does ``compare`` where the two programs do not compute the same; an error unless the choice was ``auto``.
    before_cpu: called before it loads onto the CPU. Raises ``CheckpointError`` and ``ConfigError``.
    """
    device = _torch_device(chosen, config.device)
    if device is None or device.type == "cpu":
        before_cpu()
    if device is None:
        return in_onnxruntime()
    from bistream.gpu.device import open_device  # noqa: PLC0415

    open_device(device)
    is_auto = chosen == "auto"
    try:
        with phase(f"{name}: weights read"):
            network = in_torch(device)

        def check() -> None:
            logger.info("comparing the %s in PyTorch with onnxruntime, on the CPU", name)
            compare(network, in_onnxruntime())

        with phase(f"{name}: does it compute what the file says"):
            _check_once(name.replace(" ", "-"), Path(config.model_dir) / file_name, chosen, device, check)
    except CheckpointError as error:
        if not is_auto:
            raise
        logger.warning("onnxruntime runs %s: %s", file_name, error.sentence)
        before_cpu()
        return in_onnxruntime()
    logger.info("%s runs in PyTorch on %s%s", file_name, device, f" ({name.replace(' ', '_')} is auto)" if is_auto else "")
    return network


def _torch_device(chosen: str, device_name: str) -> torch.device | None:
    """None: onnxruntime is to run the file. device_name: auto | cpu | cuda | cuda:N."""
    if chosen == "onnx" or (chosen == "auto" and not may_use_cuda(device_name)):
        return None
    with phase("imports"):
        from bistream.gpu.device import resolve_device  # noqa: PLC0415  (loads torch, which onnxruntime does without)

    device = resolve_device(device_name)
    return None if chosen == "auto" and device.type == "cpu" else device


def _check_once(kind: str, path: Path, program: str, device: torch.device, check: Callable[[], None]) -> None:
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
