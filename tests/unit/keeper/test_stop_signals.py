"""What ends a program of ours, and that ``nohup`` keeps it from ending with its terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from bistream.keeper.host import handle_stop_signals

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = [signal.getsignal(number) for number in NUMBERS]
    yield
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_hang_up_ends_it_unless_it_is_ignored(is_ignored: bool) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    stops: list[int] = []
    handle_stop_signals(lambda: stops.append(len(stops)))
    for number in NUMBERS:
        signal.raise_signal(number)
    assert len(stops) == (2 if is_ignored else 3)
