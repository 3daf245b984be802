"""The names of TensorRT-LLM that conversion and build need, or one sentence that says why they are not there.

They belong to its TensorRT engine backend, which exists up to version 1.3.0rc20; later ones only have the PyTorch backend, which loads the
merged checkpoint as it is. Read in NVIDIA/TensorRT-LLM: examples/models/core/qwen/convert_checkpoint.py at 0df9aaf,
tensorrt_llm/models/qwen/model.py at 04a2cac. Never run: no machine with TensorRT-LLM was available.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bistream.errors import ConfigError
from bistream.text2token.tensorrt_llm.contract import PACKAGE, VERSION

LAST_WITH_ENGINES = "1.3.0rc20"
WHERE = "the container with TensorRT-LLM (docs/tensorrt_llm.md)"


@dataclass(frozen=True)
class Library:
    version: str
    QWenForCausalLM: Any
    Mapping: Any
    QuantConfig: Any
    QuantAlgo: Any

    def call(self, what: str, function: Callable[..., Any], *positional: Any, **named: Any) -> Any:
        """Call it, once its signature has been found to accept that. Raises ``ConfigError`` where it does not."""
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            signature = None  # a binding without one
        if signature is not None:
            try:
                signature.bind(*positional, **named)
            except TypeError as error:
                raise ConfigError(
                    f"TensorRT-LLM {self.version} does not take what {VERSION} takes for {what} ({error}); {_use()}."
                ) from None
        return function(*positional, **named)


def installed_version() -> str:
    """Raises ``ConfigError`` where the package is not installed. Does not import it: that takes seconds and a GPU's driver."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise ConfigError(
            f"The Python package {PACKAGE} is not installed in {sys.executable}; run this in {WHERE}, or use PROFILE=torch, which needs "
            "no conversion."
        )
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def load_library() -> Library:
    """Raises ``ConfigError``: not installed, cannot be imported, or without the engine backend."""
    version = installed_version()
    try:
        importlib.import_module(PACKAGE)
    except Exception as error:  # a library or driver that is missing fails in any way
        reason = " ".join(str(error).split())[:160]
        raise ConfigError(f"TensorRT-LLM {version} cannot be imported ({type(error).__name__}: {reason}); run this in {WHERE}.") from error
    found = {}
    for module, name in (
        ("models", "QWenForCausalLM"),
        ("mapping", "Mapping"),
        ("models.modeling_utils", "QuantConfig"),
        ("quantization", "QuantAlgo"),
    ):
        try:
            found[name] = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
        except (ImportError, AttributeError):
            raise ConfigError(
                f"TensorRT-LLM {version} has no {module}.{name}, so it builds no engines (versions after {LAST_WITH_ENGINES} do not): "
                f"serve the merged checkpoint as it is, or {_use()}."
            ) from None
    return Library(version, **found)


def _use() -> str:
    return f"use version {VERSION}"
