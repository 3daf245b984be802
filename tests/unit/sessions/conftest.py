"""The ``House`` that most tests of this folder start from; a leak fails the test that caused it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.unit.sessions.house import House


@pytest.fixture
def house() -> Iterator[House]:
    before = set(threading.enumerate())
    house = House()
    yield house
    house.orchestrator.close()
    assert house.models.held == 0
    assert not [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("bistream-")]
