"""The model of the cache managers says what docs/tensorrt_llm.md says of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.text2token.tensorrt_llm.cache import Cache, Manager

PROMPT = list(range(100, 150))
SPEECH = list(range(200, 215))
STOP = 7


def turn(cache: Cache, prompt: list[int], output: list[int]) -> int:
    """One request from start to end. Returns the ids of its prompt that it computed."""
    allocation = cache.start(prompt, 20)
    assert allocation is not None
    cache.finish(allocation, output, 80)
    return len(prompt) - allocation.cached


@pytest.mark.parametrize(("manager", "by_stop", "by_length"), [("v1", 5, 6), ("v2", 15 + 5 + 1, 15 + 5 + 1)])
def test_what_the_second_turn_computes(manager: Manager, by_stop: int, by_length: int) -> None:
    text = [1, 2, 3, 4, 5]
    for output, expected in (([*SPEECH, STOP], by_stop), (SPEECH, by_length)):
        cache = Cache(64, 32, manager)
        assert turn(cache, PROMPT, output) == len(PROMPT)
        assert turn(cache, [*PROMPT, *SPEECH, *text], output) == expected


def test_the_same_prompt_again_computes_its_last_id() -> None:
    cache = Cache(64, 16)
    turn(cache, PROMPT, [STOP])
    assert turn(cache, PROMPT, [STOP]) == 1


def test_a_session_that_differs_shares_what_it_has_in_common() -> None:
    cache = Cache(64, 16)
    turn(cache, PROMPT, SPEECH)
    assert turn(cache, [*PROMPT[:20], 1, 2, 3], SPEECH) == 3


def test_low_priority_goes_first_then_the_oldest() -> None:
    cache = Cache(8, 16)
    for first, priority in ((100, 80), (200, 35), (300, 80)):
        allocation = cache.start(list(range(first, first + 32)), 1)
        assert allocation is not None
        cache.finish(allocation, [1], priority)
    assert cache.num_used == 6
    other = cache.start(list(range(900, 960)), 4)  # four blocks: two that are free, and the two of low priority
    assert other is not None and cache.num_displaced == 2
    assert turn(cache, list(range(100, 132)), [1]) == 1


def test_a_request_waits_while_others_use_all_blocks() -> None:
    cache = Cache(4, 16)
    first = cache.start(list(range(40)), 20)
    assert first is not None and cache.start([900], 15) is None
    cache.finish(first, [1], 80)
    assert cache.start([900], 15) is not None


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(0, 12), st.integers(0, 100)), max_size=25))
def test_blocks_are_never_lost(requests: list[tuple[list[int], int, int]]) -> None:
    cache = Cache(12, 4)
    for prompt, num_output, priority in requests:
        allocation = cache.start(prompt, 12)
        if allocation is None:
            continue
        assert 0 <= allocation.cached < len(prompt)
        assert cache.num_used <= cache.num_blocks
        cache.finish(allocation, [1] * num_output, priority)
        assert cache.num_used <= cache.num_blocks and cache._num_owned == 0
    cache.forget()
    assert cache.num_used == 0
