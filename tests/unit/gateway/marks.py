"""Marks of the gate's tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest


def long(test: Callable[..., Any]) -> Callable[..., Any]:
    """A test of minutes, which runs only when it is asked for."""
    skipped = pytest.mark.skipif("BISTREAM_FUZZ" not in os.environ, reason="takes minutes; set BISTREAM_FUZZ=1")
    marked: Callable[..., Any] = pytest.mark.slow(skipped(test))
    return marked
