"""Opens an ONNX model of the front-ends: the first provider that starts, threads from the configuration, tensors by position.

The input and output names of the released files are unverified, so nothing here depends on them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from bistream.checkpoints.reader import find_file
from bistream.errors import CheckpointError, ConfigError, EngineError
from bistream.processes.start_phases import phase
from bistream.voice import onnx_providers
from bistream.voice.onnx_providers import CPU, CUDA, TENSORRT, TITLES, OnnxSettings, Provider, ShapeRange, engine_folder, provider_order

logger = logging.getLogger(__name__)

DEFAULTS = OnnxSettings()
# What a file may want in place of float32 and int32: one that was converted to half precision, or exported with PyTorch's integers.
_OTHER_TYPES: dict[str, type[np.generic]] = {"tensor(float16)": np.float16, "tensor(int64)": np.int64}


def computes_on_cpu(settings: OnnxSettings) -> bool:
    """Whether a network with these settings will run on the CPU. Raises ``ConfigError``."""
    return onnx_providers.computes_on_cpu(settings, onnxruntime.get_available_providers())


class OnnxModel:
    """One loaded ONNX file with one output. ``run`` may be called from several threads."""

    def __init__(self, model_dir: str | Path, file_name: str, ranges: Sequence[ShapeRange], settings: OnnxSettings = DEFAULTS) -> None:
        """ranges: one for each input.

        Raises ``CheckpointError`` naming the file when it is missing, damaged or has another number of inputs, and ``ConfigError``
        when no provider can be used.
        """
        path = find_file(model_dir, file_name)
        self.file_name = file_name
        with phase(f"{file_name} opened"):
            self._session, self.provider = _open(path, ranges, settings)
        inputs = self._session.get_inputs()
        self._input_names = [item.name for item in inputs]
        self._other_types = [_OTHER_TYPES.get(item.type) for item in inputs]
        if len(inputs) != len(ranges):
            raise CheckpointError(f"{file_name} has {len(inputs)} inputs, not {len(ranges)}; it is not the released model's file.")
        # An axis of any size has a name or nothing in place of a number.
        self.takes_batches = not any(item.shape and isinstance(item.shape[0], int) for item in inputs)

    def run(self, *inputs: NDArray[Any]) -> NDArray[Any]:
        """Inputs by position; returns the first output. Raises ``EngineError`` when the model fails."""
        arrays = [array if other is None else array.astype(other) for array, other in zip(inputs, self._other_types, strict=True)]
        try:
            output = self._session.run(None, dict(zip(self._input_names, arrays, strict=True)))[0]
        except Exception as error:
            raise EngineError(f"{self.file_name} failed on this recording ({type(error).__name__}); try another recording.") from error
        return np.asarray(output)


def _open(path: Path, ranges: Sequence[ShapeRange], settings: OnnxSettings) -> tuple[Any, str]:
    """The session, and its provider; says in one line which one it is and why no better one is."""
    order, available = provider_order(settings), onnxruntime.get_available_providers()
    reasons: list[str] = []
    for name in order:
        session = None
        if name not in available:
            reasons.append(f"{TITLES[name]} is not in this onnxruntime")
        elif name == CPU:
            session = _load(path, settings, [CPU])
        elif (session := _open_on_gpu(name, path, ranges, settings)) is None:
            reasons.append(f"{TITLES[name]} does not start here")
        if session is not None:
            logger.info("%s runs on %s%s", path.name, TITLES[name], f" ({'; '.join(reasons)})" if reasons else "")
            return session, name
    raise ConfigError(
        f"Parameters 'device' and 'onnx_providers' are {settings.device!r} and {settings.providers!r}, but for {path.name} "
        f"{', and '.join(reasons)}; install onnxruntime-gpu (requirements/gpu.txt) and the CUDA libraries it needs, or set both to auto."
    )


def _open_on_gpu(name: str, path: Path, ranges: Sequence[ShapeRange], settings: OnnxSettings) -> Any:
    """``None`` where the provider does not start: onnxruntime falls back silently, or raises."""
    _load_cuda_libraries()
    names = [item.name for item in _load(path, settings, [CPU], optimize=False).get_inputs()]
    if len(names) != len(ranges):
        raise CheckpointError(f"{path.name} has {len(names)} inputs, not {len(ranges)}; it is not the released model's file.")
    engines = engine_folder(settings.engine_dir, path, ranges) if name == TENSORRT else Path()
    try:
        session = _load(path, settings, onnx_providers.session_providers(name, settings, names, ranges, engines))
    except CheckpointError as error:  # the file is whole: the CPU has read it
        logger.info("%s: %s", TITLES[name], error.__cause__)
        return None
    return session if name in session.get_providers() else None


def _load(path: Path, settings: OnnxSettings, providers: list[Provider], optimize: bool = True) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.num_threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads leave the cores to the other stages
    options.log_severity_level = 3  # errors only: the warnings are about graph optimisation
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # onnxruntime has an exception type for each cause
        raise CheckpointError(
            f"{path.name} could not be loaded ({type(error).__name__}); the file is damaged, download it again."
        ) from error


@functools.cache
def _load_cuda_libraries() -> None:
    """From the Python packages that PyTorch brings with it, where they are installed; the system's need no help."""
    if CUDA in onnxruntime.get_available_providers():
        onnxruntime.preload_dlls()
