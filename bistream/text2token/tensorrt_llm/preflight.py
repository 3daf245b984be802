"""What can be said of TensorRT-LLM without loading it or torch: stage 2 of ``run.sh`` asks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

from bistream.errors import ConfigError

PACKAGE = "tensorrt_llm"
VERSION = "1.2"  # the last one whose default cache manager keeps decoded ids, so that a turn computes only what is new
WHERE = "the container of docs/tensorrt_llm.md"
# The cache holds so many times the positions that sessions may reserve: closed sessions stay in it until they are displaced.
CACHE_PER_ADMITTED = 2


def check_installed() -> None:
    """Raises ``ConfigError`` unless the package is installed, in a version that the engine was written for."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise ConfigError(
            f"Engine tensorrt_llm needs the Python package {PACKAGE} {VERSION}, which {sys.executable} does not have; "
            f"use {WHERE} or set engine (PROFILE) to torch."
        )
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return  # from a source tree
    if not version.startswith(f"{VERSION}."):
        raise ConfigError(
            f"TensorRT-LLM {version} is installed, and the engine was written for {VERSION}; use {WHERE} or set engine (PROFILE) to torch."
        )
