"""Two GPUs against one: how the number of carried callers is searched, and how large the servers are made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.two_gpus import is_carried, most_carried, most_sessions


@given(
    numbers=st.lists(st.integers(1, 1000), min_size=1, max_size=8, unique=True),
    limit=st.integers(0, 1200),
    resolution=st.integers(1, 64),
)
def test_the_search_encloses_what_a_server_carries(numbers: list[int], limit: int, resolution: int) -> None:
    tried: list[int] = []

    def carries(callers: int) -> bool:
        tried.append(callers)
        return callers <= limit

    carried, too_many = most_carried(numbers, resolution, carries)
    assert len(tried) == len(set(tried))
    assert carried <= limit and (carried == 0 or carried in tried)
    if too_many is None:
        assert carried == max(numbers)
    else:
        assert limit < too_many and too_many in tried
        assert carried == 0 or too_many - carried <= resolution


def test_a_failed_session_or_a_gap_is_not_carried() -> None:
    assert is_carried({"sessions": 8, "failed": 0, "sessions_without_gap": 8})
    assert not is_carried({"sessions": 8, "failed": 1, "sessions_without_gap": 7})


def test_every_server_has_room_for_its_callers_and_memory_for_them() -> None:
    """An H200 has 141 GB; a session takes 50 MB of it in the language model, and flow state needs the rest where they share the GPU."""
    callers = [128, 640]
    assert {way: most_sessions(way, callers) for way in ("one", "per-gpu", "split")} == {"one": 800, "per-gpu": 800, "split": 1600}
