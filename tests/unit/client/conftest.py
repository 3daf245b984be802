"""Servers in this process, which end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.unit.client.fake_server import FakeServer, Serve


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda behave: stack.enter_context(FakeServer(behave))
