"""What holds for all tests of the interfaces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interfaces.core import servers
from tests.unit.interfaces.rig import START_TIMEOUT_S


@pytest.fixture(scope="session", autouse=True)
def patient_checks() -> Iterator[None]:
    """A machine that stands still for two seconds takes no server away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "CHECK_TIMEOUT_S", START_TIMEOUT_S)
        yield
