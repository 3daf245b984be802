"""What holds for all tests of the interfaces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interfaces.core import servers
from tests.unit.interfaces.rig import START_TIMEOUT_S, ReadyServer, Running, reading, running


@pytest.fixture(scope="session", autouse=True)
def patient_checks() -> Iterator[None]:
    """A machine that stands still for two seconds takes no server away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "CHECK_TIMEOUT_S", START_TIMEOUT_S)
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[ReadyServer]:
    with reading() as made:
        yield made


@pytest.fixture(scope="module")
def front(server: ReadyServer, request: pytest.FixtureRequest) -> Iterator[Running]:
    """Before ``server``, with ``LIMITS`` of the module that asks."""
    with running(server.address, limits=getattr(request.module, "LIMITS", None)) as made:
        yield made
