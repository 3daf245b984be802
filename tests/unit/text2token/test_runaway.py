"""Repetition and endless silence are noticed in time; speech is not taken for either."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from bistream.text2token.runaway import CHECKS_PER_WINDOW, RunawayWatch

WINDOW = 75


def loop(seed: int, period: int, ahead: int) -> list[int]:
    draw = Random(seed)
    before = [draw.randrange(6561) for _ in range(ahead)]
    pattern = [draw.randrange(6561) for _ in range(period)]
    return before + [pattern[index % period] for index in range(2 * WINDOW)]


@given(st.integers(0, 2**31), st.integers(1, WINDOW // 2), st.integers(0, 200), st.integers(1, 9))
def test_a_loop_is_noticed_within_the_window_and_a_fifth(seed: int, period: int, ahead: int, step: int) -> None:
    """And what is handed out until then ends with the first round and a few tokens, whatever the pieces."""
    ids, watch = loop(seed, period, ahead), RunawayWatch(WINDOW)
    whole = RunawayWatch(WINDOW)
    expected, free = whole.push(ids), []
    for start in range(0, len(ids), step):
        free += watch.push(ids[start : start + step])
        if watch.found is not None:
            assert start + step >= WINDOW
            assert start + step - ahead <= WINDOW + WINDOW // CHECKS_PER_WINDOW + 2 * step
            assert (free, watch.held, watch.head, watch.found) == (expected, whole.held, whole.head, whole.found)
            assert len(free) <= ahead + period + 19
            assert watch.held and free + watch.held == ids[: len(free) + len(watch.held)]
            assert watch.push([1, 2, 3]) == [], "nothing after it"
            return
    raise AssertionError("the loop was not noticed")


@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(0, 100))
def test_silence_in_any_order_is_noticed(seed: int, variety: int, ahead: int) -> None:
    draw = Random(seed)
    watch = RunawayWatch(WINDOW)
    free = watch.push([draw.randrange(6561) for _ in range(ahead)])
    free += watch.push([draw.randrange(variety) for _ in range(WINDOW + WINDOW // CHECKS_PER_WINDOW)])
    assert watch.found in ("stuck", "loop")
    assert ahead <= len(free) <= ahead + 19
    assert len(free) - watch.head >= ahead - 15, "little is left of the pause, and of the speech before it nearly all"


@given(st.integers(0, 2**31), st.integers(1, 20))
def test_varied_speech_with_pauses_of_two_seconds_is_left_alone(seed: int, step: int) -> None:
    """All of it goes, in order, and nothing is held for longer than the pause."""
    draw = Random(seed)
    watch = RunawayWatch(WINDOW)
    ids: list[int] = []
    for _ in range(6):
        ids += [draw.randrange(6561) for _ in range(60)] + [draw.randrange(3) for _ in range(50)]
    free: list[int] = []
    for start in range(0, len(ids), step):
        free += watch.push(ids[start : start + step])
        assert watch.found is None and len(watch.held) <= 50 + 5
        assert free + watch.held == ids[: start + step]
    assert free + watch.release() == ids


@given(st.lists(st.integers(0, 20), min_size=1, max_size=400), st.integers(0, 100))
def test_nothing_is_lost_or_changed(ids: list[int], window: int) -> None:
    watch = RunawayWatch(window)
    free = [token for token_id in ids for token in watch.push([token_id])]
    assert free + watch.held == ids[: len(free) + len(watch.held)]
    assert watch.found is not None or len(free) + len(watch.held) == len(ids)
    assert 0 <= watch.head <= len(free)


def test_a_window_of_zero_never_sees_one() -> None:
    watch = RunawayWatch(0)
    assert watch.push([1] * 10_000) == [1] * 10_000 and watch.found is None
