"""Servers in this process, which end with their test, and both clients with the same verbs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from bistream.client.client import BistreamClient
from tests.unit.client.blocking import BlockingClient
from tests.unit.client.fake_server import FakeServer, Serve


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda behave: stack.enter_context(FakeServer(behave))


@pytest.fixture(params=["threaded", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes a client of a server's address and options."""
    if request.param == "threaded":
        yield BistreamClient
        return
    with asyncio.Runner() as runner:
        yield partial(BlockingClient, runner)
