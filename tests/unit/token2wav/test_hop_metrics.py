"""Batches, waits and late answers of the token2wav service, from its jobs alone."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.metrics.recorder import Recorder
from bistream.token2wav.hop_jobs import AudioSession, HopJob, Token2WavHop
from bistream.token2wav.hop_metrics import HopMetrics
from bistream.token2wav.renderer import FLOW_PAGES, PoolUse
from bistream.types import AudioOptions, VoicePrompt
from tests.recorded import sample

PROMPT = VoicePrompt("", np.zeros(0, np.int32), np.zeros((0, 80), np.float32), np.ones(192, np.float32))
ARRIVED_S, BEGAN_S, TOOK_S = 10.0, 10.5, 0.25


def make(recorder: Recorder, queued: int = 0, **pools: PoolUse) -> HopMetrics:
    return HopMetrics(recorder, lambda: queued, lambda: {name.replace("_", " "): use for name, use in pools.items()})


def job(buffer_s: float, is_first: bool = False) -> HopJob:
    hop = Token2WavHop("s", (1,) * 5, finalize=False, playback_buffer_s=buffer_s)
    session = AudioSession("s", PROMPT, AudioOptions(), ARRIVED_S)
    return HopJob(session, hop, is_first, ARRIVED_S + buffer_s, Future())


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 2.0)), min_size=1, max_size=8))
def test_a_batch_is_recorded_as_it_was_computed(hops: list[tuple[bool, float]]) -> None:
    recorder = Recorder()
    jobs = [job(0.0 if is_first else buffer_s, is_first) for is_first, buffer_s in hops]
    make(recorder).batch(jobs, BEGAN_S, TOOK_S, BEGAN_S + TOOK_S)
    first = sum(one.is_first for one in jobs)
    late = sum(not one.is_first and one.deadline_s < BEGAN_S + TOOK_S for one in jobs)
    assert [sample(recorder, "hops_total", hop=hop) for hop in ("first", "later")] == [first, len(jobs) - first]
    assert sample(recorder, "hops_late_total") == late
    assert [sample(recorder, f"hop_batch_size_{part}") for part in ("count", "sum")] == [1, len(jobs)]
    assert sample(recorder, "hop_batch_s_sum") == TOOK_S
    assert sample(recorder, "audio_stage_s_sum", stage="hop_queue") == pytest.approx(first * (BEGAN_S - ARRIVED_S))
    assert sample(recorder, "audio_stage_s_sum", stage="hop_compute") == pytest.approx(first * TOOK_S)


def test_pools_and_queue_are_read_with_every_snapshot() -> None:
    recorder = Recorder()
    make(recorder, queued=3, flow_pages=PoolUse(5, 10, promised=2))
    assert FLOW_PAGES == "flow pages"
    assert sample(recorder, "hop_queue_depth") == 3
    assert [sample(recorder, "flow_pages", state=state) for state in ("used", "reserved", "free")] == [5, 2, 3]
    assert sample(recorder, "vocoder_slots", state="used") == 0, "a renderer without slots"
