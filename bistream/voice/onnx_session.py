"""Runs an ONNX model of the voice on the CPU, with tensors by position.

The input and output names of the released files are unverified, so nothing here depends on them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from bistream.checkpoints.reader import find_file
from bistream.errors import CheckpointError, EngineError
from bistream.processes.start_phases import phase

# What a file may want in place of float32 and int32: one that was converted to half precision, or exported with PyTorch's integers.
_OTHER_TYPES: dict[str, type[np.generic]] = {"tensor(float16)": np.float16, "tensor(int64)": np.int64}


class OnnxModel:
    """One loaded ONNX file with one output. ``run`` may be called from several threads."""

    def __init__(self, model_dir: str | Path, file_name: str, num_inputs: int, num_threads: int = 0) -> None:
        """num_threads: 0 is onnxruntime's default.

        Raises ``CheckpointError`` naming the file when it is missing, damaged or has another number of inputs.
        """
        path = find_file(model_dir, file_name)
        self.file_name = file_name
        with phase(f"{file_name} opened"):
            self._session = _load(path, num_threads)
        inputs = self._session.get_inputs()
        self._input_names = [item.name for item in inputs]
        self._other_types = [_OTHER_TYPES.get(item.type) for item in inputs]
        if len(inputs) != num_inputs:
            raise CheckpointError(f"{file_name} has {len(inputs)} inputs, not {num_inputs}; it is not the released model's file.")

    def run(self, *inputs: NDArray[Any]) -> NDArray[Any]:
        """Inputs by position; returns the first output. Raises ``EngineError`` when the model fails."""
        arrays = [array if other is None else array.astype(other) for array, other in zip(inputs, self._other_types, strict=True)]
        try:
            output = self._session.run(None, dict(zip(self._input_names, arrays, strict=True)))[0]
        except Exception as error:
            raise EngineError(f"{self.file_name} failed on this recording ({type(error).__name__}); try another recording.") from error
        return np.asarray(output)


def _load(path: Path, num_threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads leave the cores to the other stages
    options.log_severity_level = 3  # errors only: the warnings are about graph optimisation
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception type for each cause
        raise CheckpointError(
            f"{path.name} could not be loaded ({type(error).__name__}); the file is damaged, download it again."
        ) from error
