"""The simulation of language model and token2wav on one GPU: what claims bring newcomers, and that nobody pays with a gap."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from benchmarks._deadline_load import Results
from benchmarks._deadline_shared import SharedGpuLoad
from bistream.gpu.right_of_way import HOPS, TOKENS
from bistream.token2wav.hop_queue import BatchPace
from bistream.token2wav.turns import FIRST_TOKENS_PER_S, Turns


@cache
def heard(callers: int, *claims: str) -> Results:
    return SharedGpuLoad(callers, Turns(BatchPace(FIRST_TOKENS_PER_S), 5), claims).run(2.0, 2.0)


def median(values: list[float]) -> float:
    return float(np.median(values))


@pytest.mark.parametrize("callers", [16, 64])
def test_newcomers_hear_something_earlier_where_both_give_way(callers: int) -> None:
    apart, both = heard(callers), heard(callers, HOPS, TOKENS)
    assert median(both.first_audio) < 0.8 * median(apart.first_audio)
    assert median(both.token_waits) < 0.8 * median(apart.token_waits)
    assert both.audio_s > 0.75 * apart.audio_s


@pytest.mark.parametrize("claims", [(), (HOPS,), (HOPS, TOKENS)])
def test_no_later_hop_is_late(claims: tuple[str, ...]) -> None:
    found = heard(64, *claims)
    assert found.first_audio and found.late and max(found.late) == 0.0
