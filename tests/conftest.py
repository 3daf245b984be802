"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model directory, read only. Every process of a parallel run makes its own, in a fraction of a second."""
    from scripts.make_checkpoint import make_checkpoint  # noqa: PLC0415  (most tests do not need torch)

    directory = tmp_path_factory.mktemp("checkpoint") / "tiny"
    make_checkpoint(directory, "tiny", seed=0)
    return directory
