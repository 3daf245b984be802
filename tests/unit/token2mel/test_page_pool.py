"""Ownership of flow pages: every page has one owner, reservations are kept, refusals change nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import BusyError
from bistream.token2mel.page_pool import Account, PagePool

TOTAL = 20
VOICES = {b"a": 0, b"b": 1, b"c": 4, b"d": 7}

actions = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 8), st.sampled_from(sorted(VOICES))),
        st.tuples(st.just("take"), st.integers(0, 30), st.integers(0, 6)),
        st.tuples(st.just("give"), st.integers(0, 30), st.integers(0, 3)),
        st.tuples(st.just("ready"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("close"), st.integers(0, 30), st.just(0)),
    ),
    max_size=60,
)


def _act(pool: PagePool, live: list[Account], kind: str, account: Account, amount: int) -> None:
    if kind == "take":
        promised = account.promised
        taken = pool.take(account, amount)
        assert min(amount, promised) <= len(taken) <= amount
    elif kind == "give":
        pool.give_back(account, account.pages[:amount])
    elif kind == "close":
        pool.close(account)
        pool.close(account)
        live.remove(account)
    elif account.prefix is not None:
        account.prefix.ready = True


@given(actions)
def test_every_page_has_one_owner_and_reservations_are_kept(steps: list[tuple[str, int, object]]) -> None:
    pool = PagePool(TOTAL)
    live: list[Account] = []
    for kind, first, second in steps:
        if kind == "open":
            assert isinstance(second, bytes)
            before = (pool.free_pages, pool.available)
            try:
                live.append(pool.open(first, second, VOICES[second]))
            except BusyError:
                assert (pool.free_pages, pool.available) == before
        elif live:
            assert isinstance(second, int)
            _act(pool, live, kind, live[first % len(live)], second)
        pool.check_integrity()
    for account in live:
        pool.close(account)
    pool.check_integrity()
    assert pool.available == TOTAL


def test_sessions_of_a_voice_share_its_pages() -> None:
    pool = PagePool(10)
    first = pool.open(1, b"voice", 4)
    assert first.prefix is not None
    first.prefix.ready = True
    second = pool.open(1, b"voice", 4)
    assert second.prefix is first.prefix
    assert pool.free_pages == 6


def test_idle_voices_are_kept_and_evicted_least_recently_used_first() -> None:
    pool = PagePool(10)
    for key in (b"old", b"new", b"old"):
        account = pool.open(0, key, 4)
        assert account.prefix is not None
        account.prefix.ready = True
        pool.close(account)
    assert pool.free_pages == 2
    pool.take(pool.open(5, b"", 0), 5)  # evicts "new": "old" was used after it
    kept = pool.open(0, b"old", 4)
    assert kept.prefix is not None and kept.prefix.ready
    with pytest.raises(BusyError):
        pool.open(0, b"new", 4)
    pool.check_integrity()


def test_the_pages_of_an_idle_voice_count_when_a_session_takes_it_up() -> None:
    """They can no longer be evicted for a reservation: of ten pages, four of the voice leave six."""
    pool = PagePool(10)
    account = pool.open(0, b"voice", 4)
    assert account.prefix is not None
    account.prefix.ready = True
    pool.close(account)
    with pytest.raises(BusyError):
        pool.open(7, b"voice", 4)
    pool.check_integrity()
    assert len(pool.take(pool.open(6, b"voice", 4), 6)) == 6
    pool.check_integrity()
