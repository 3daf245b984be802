"""The ``House`` that most tests of this folder start from; a leak fails the test that caused it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.unit.sessions.fakes import WAIT_S
from tests.unit.sessions.house import CONFIG, House


@pytest.fixture
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    """With ``CONFIG``, or as ``house_with`` says."""
    before = set(threading.enumerate())
    house = House(getattr(request, "param", CONFIG))
    yield house
    house.orchestrator.close()
    assert house.models.held == 0
    left = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("bistream-")]
    for thread in left:
        thread.join(WAIT_S)  # that of an analysis has said that it is done, and may be in its last line
    assert not [thread.name for thread in left if thread.is_alive()]
