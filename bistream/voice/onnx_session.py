"""Opens an ONNX model of the front-ends: provider from the device, threads from the configuration, tensors by position.

The input and output names of the released files are unverified, so nothing here depends on them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from bistream.checkpoint import find_file
from bistream.errors import CheckpointError, ConfigError, EngineError

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"


def choose_providers(device: str, available: Sequence[str]) -> list[str | tuple[str, dict[str, str]]]:
    """onnxruntime providers for ``RuntimeConfig.device`` (auto | cpu | cuda | cuda:N), best first.

    ``auto`` uses CUDA if this onnxruntime supports it; requesting CUDA without support is a ``ConfigError``.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", device):
        raise ConfigError(f"Parameter 'device' is {device!r}; set it to auto, cpu, cuda or cuda:N.")
    kind, _, index = device.partition(":")
    if kind == "cuda" and CUDA not in available:
        raise ConfigError(f"Parameter 'device' is {device!r}, but this onnxruntime has no CUDA; install onnxruntime-gpu or set it to auto.")
    if kind == "cpu" or CUDA not in available:
        return [CPU]
    return [(CUDA, {"device_id": index or "0"}), CPU]


class OnnxModel:
    """One loaded ONNX file with one output. ``run`` may be called from several threads."""

    def __init__(self, model_dir: str | Path, file_name: str, inputs: int, device: str = "auto", num_threads: int = 0) -> None:
        """num_threads: per run; 0 keeps onnxruntime's default.

        Raises ``CheckpointError`` naming the file when it is missing, damaged or has another number of inputs.
        """
        path = find_file(model_dir, file_name)
        self.file_name = file_name
        providers = choose_providers(device, onnxruntime.get_available_providers())
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads leave the cores to the other stages
        options.log_severity_level = 3  # errors only: the warnings are about graph optimisation
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:  # onnxruntime has an exception type for each cause
            raise CheckpointError(
                f"{file_name} could not be loaded ({type(error).__name__}); the file is damaged, download it again."
            ) from error
        if device.startswith("cuda") and CUDA not in self._session.get_providers():  # it falls back silently
            raise ConfigError(
                f"onnxruntime could not start CUDA for {file_name}; install the CUDA libraries it needs or set device to auto."
            )
        self._input_names = [item.name for item in self._session.get_inputs()]
        if len(self._input_names) != inputs:
            raise CheckpointError(f"{file_name} has {len(self._input_names)} inputs, not {inputs}; it is not the released model's file.")

    def run(self, *inputs: NDArray[Any]) -> NDArray[Any]:
        """Inputs by position; returns the first output. Raises ``EngineError`` when the model fails."""
        try:
            output = self._session.run(None, dict(zip(self._input_names, inputs, strict=True)))[0]
        except Exception as error:
            raise EngineError(f"{self.file_name} failed on this recording ({type(error).__name__}); try another recording.") from error
        return np.asarray(output)
