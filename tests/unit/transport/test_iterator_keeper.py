"""A finished iterator may die only after a round trip that began after it had finished (else the stub corrupts its heap)."""

from __future__ import annotations

import weakref

import pytest

from bistream.transport.iterator_keeper import IteratorKeeper


class Iterator:
    pass


def kept(keeper: IteratorKeeper) -> weakref.ref[Iterator]:
    iterator = Iterator()
    keeper.keep(iterator)
    return weakref.ref(iterator)


def test_an_iterator_lives_until_a_later_round_trip_has_come_back() -> None:
    keeper = IteratorKeeper()
    before = kept(keeper)
    with keeper.round_trip():
        assert before() is not None
        during = kept(keeper)
    assert before() is None
    assert during() is not None
    with keeper.round_trip():
        pass
    assert during() is None


def test_a_round_trip_that_fails_proves_nothing() -> None:
    keeper = IteratorKeeper()
    iterator = kept(keeper)
    with pytest.raises(RuntimeError), keeper.round_trip():
        raise RuntimeError
    assert iterator() is not None
    with keeper.round_trip():
        pass
    assert iterator() is None
