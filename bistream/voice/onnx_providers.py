"""Which execution providers of onnxruntime may run a network, in which order, and with which options. No session is opened here.

The parameter ``onnx_providers`` is ``auto`` or a list such as ``tensorrt,cuda``: the first that starts is used, and the others are its
fall-back. ``auto`` is TensorRT where ``onnx_engine_dir`` says where its engines are kept (building them takes minutes), then CUDA, then
the CPU, as far as ``device`` allows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bistream.config import RuntimeConfig
from bistream.errors import ConfigError
from bistream.store import fingerprint
from bistream.store.fingerprint import Fingerprint, file_hash, gpus, versions

logger = logging.getLogger(__name__)

TENSORRT, CUDA, CPU = "TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"
PROVIDERS = {"tensorrt": TENSORRT, "cuda": CUDA, "cpu": CPU}
TITLES = {TENSORRT: "TensorRT", CUDA: "CUDA", CPU: "the CPU"}
_PACKAGES = ("onnxruntime-gpu", "onnxruntime", "tensorrt", "tensorrt-cu12", "tensorrt-cu13")
Provider = str | tuple[str, dict[str, str]]


@dataclass(frozen=True)
class ShapeRange:
    """Of one input: the smallest shape, the one to optimise for, and the largest."""

    least: tuple[int, ...]
    usual: tuple[int, ...]
    most: tuple[int, ...]


@dataclass(frozen=True)
class OnnxSettings:
    """As in ``RuntimeConfig``."""

    device: str = "auto"
    num_threads: int = 0
    providers: str = "auto"
    engine_dir: str = ""

    @classmethod
    def of(cls, config: RuntimeConfig) -> OnnxSettings:
        return cls(config.device, config.num_threads, config.onnx_providers, config.onnx_engine_dir)

    def on_cpu(self) -> OnnxSettings:
        return OnnxSettings("cpu", self.num_threads)


def provider_order(settings: OnnxSettings) -> list[str]:
    """Names of providers, best first; not empty. Raises ``ConfigError`` where ``device`` and ``onnx_providers`` do not fit."""
    device = settings.device
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", device):
        raise ConfigError(f"Parameter 'device' is {device!r}; set it to auto, cpu, cuda or cuda:N.")
    if settings.providers == "auto":
        gpu = [TENSORRT, CUDA] if settings.engine_dir else [CUDA]
        return [CPU] if device == "cpu" else gpu if device.startswith("cuda") else [*gpu, CPU]
    order = [PROVIDERS[name] for name in settings.providers.split(",")]
    if device == "cpu":
        order = [name for name in order if name == CPU]
    if not order:
        raise ConfigError(f"Parameter 'onnx_providers' is {settings.providers!r}, but 'device' is 'cpu'; change one of them.")
    return order


def computes_on_cpu(settings: OnnxSettings, available: Sequence[str]) -> bool:
    """Whether the network will run on the CPU, as far as that can be known before it is opened. Raises as ``provider_order``."""
    return next((name for name in provider_order(settings) if name in available), CPU) == CPU


def session_providers(
    name: str, settings: OnnxSettings, names: Sequence[str], ranges: Sequence[ShapeRange], engines: Path
) -> list[Provider]:
    """What a session of provider ``name`` is opened with: nodes that it does not support go to those after it.

    names: of the inputs, for ``ranges``. engines: folder of TensorRT's engines.
    """
    if name == CPU:
        return [CPU]
    gpu = {"device_id": settings.device.partition(":")[2] or "0"}
    if name == CUDA:
        return [(CUDA, gpu), CPU]
    options = {
        **gpu,
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": str(engines),
        "trt_timing_cache_enable": "True",
        "trt_timing_cache_path": str(engines),
        # Without a profile an engine is built again for every recording that is longer than all before it.
        "trt_profile_min_shapes": _profile(names, [shapes.least for shapes in ranges]),
        "trt_profile_opt_shapes": _profile(names, [shapes.usual for shapes in ranges]),
        "trt_profile_max_shapes": _profile(names, [shapes.most for shapes in ranges]),
    }
    return [(TENSORRT, options), (CUDA, gpu), CPU]


def _profile(names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> str:
    """``input:1x4x80,lengths:1``, onnxruntime's form."""
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in zip(names, shapes, strict=True))


def engine_folder(engine_dir: str, path: Path, ranges: Sequence[ShapeRange]) -> Path:
    """Where the engines of an ONNX file for this GPU and these versions are; made when it is missing. Raises ``ConfigError``.

    Engines that were built for anything else are in another folder, so they are neither used nor overwritten.
    """
    facts = {
        path.name: file_hash(path),
        "GPU": " + ".join(gpus()) or fingerprint.NO_VALUE,
        "shapes": str(list(ranges)),
        **versions(*_PACKAGES),
    }
    made_for = Fingerprint(facts)
    base = Path(engine_dir) if engine_dir else Path.cwd()
    folder = base / f"{path.stem}-{made_for.digest}"
    others = [stored for other in base.glob(f"{path.stem}-*") if other != folder and (stored := fingerprint.read(other)) is not None]
    try:
        is_new = not folder.is_dir()
        folder.mkdir(parents=True, exist_ok=True)
        fingerprint.write(folder, made_for)
    except OSError as error:
        raise ConfigError(
            f"Parameter 'onnx_engine_dir' is {engine_dir!r}, where nothing can be written ({error.strerror}); change it."
        ) from None
    if is_new:
        why = f"; those there are for something else ({'; '.join(others[-1].differences(made_for))})" if others else ""
        logger.info("TensorRT builds engines of %s in %s, which takes minutes%s", path.name, folder, why)
    return folder
