"""How many sessions a GPU has room for: all promises fit, settings are kept, and more memory is never worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bistream.checkpoints.config import DitFlowConfig, FlowConfig, LanguageModelConfig
from bistream.config import RuntimeConfig
from bistream.errors import ConfigError
from bistream.sizing import (
    DIT_BYTES,
    LANGUAGE_MODEL_BYTES,
    LEAST_SHARE,
    MB,
    MOST_SESSIONS,
    SHARE,
    SPEECH_BYTES,
    SURE_S,
    VOICES_S,
    Costs,
    Gpu,
    Limits,
    choose,
    costs_of,
)
from bistream.token2mel.factory import flow_page_bytes
from bistream.token2mel.state_budget import AUTO_SESSION_S, language_model_bytes, state_pages
from bistream.token2wav.factory import load_renderer

DEFAULTS = RuntimeConfig()
TOKENS = 2048  # of the KV cache for a session of the released models
WEIGHTS = language_model_bytes(LanguageModelConfig(), 1)
RELEASED = Costs(WEIGHTS, language_model_bytes(LanguageModelConfig(), 1 + TOKENS) - WEIGHTS, TOKENS, page=16_000_000)
costs = st.builds(
    Costs,
    weights=st.integers(0, 3 * 10**9),
    session=st.integers(1, 10**8),
    session_tokens=st.integers(64, 10_000),
    page=st.integers(10**5, 5 * 10**7),
    page_s=st.sampled_from([0.5, 1.0, 2.0]),
    speech=st.sampled_from([SPEECH_BYTES, SPEECH_BYTES + DIT_BYTES]),
)
free_bytes = st.integers(10**8, 2 * 10**11)


def chosen(free: int, cost: Costs, config: RuntimeConfig = DEFAULTS) -> Limits | None:
    """With both models on one GPU; ``None`` where no session fits."""
    try:
        return choose(config, cost, Gpu(0, free), Gpu(0, free))
    except ConfigError as error:
        assert str(error).count("\n") == 0 and "set max_sessions" in str(error)
        return None


def pages_of(limits: Limits, cost: Costs) -> int:
    """As the flow counts them."""
    assert limits.flow_state_mb is not None
    return state_pages(limits.flow_state_mb, cost.page, cost.page_s, limits.sessions, 0)


@given(free=free_bytes, cost=costs)
def test_every_session_and_the_voices_fit_and_another_session_would_not(free: int, cost: Costs) -> None:
    left = free - cost.weights
    room = max(0.0, SHARE * (left - LANGUAGE_MODEL_BYTES - cost.speech), LEAST_SHARE * left)
    each, voices = cost.session + SURE_S / cost.page_s * cost.page, VOICES_S / cost.page_s * cost.page
    limits = chosen(free, cost)
    if limits is None:
        assert voices + each * 1.2 + 1 > room  # 1.2: of 2 s, four pages are 8 s
        return
    assert limits.reserved_speech_s is not None and limits.reserved_speech_s >= SURE_S
    pages = pages_of(limits, cost)
    assert limits.sessions * limits.reserved_speech_s + VOICES_S <= pages * cost.page_s
    assert limits.sessions * cost.session + pages * cost.page <= room + max(MB, cost.page)
    assert pages * cost.page_s <= limits.sessions * AUTO_SESSION_S + VOICES_S + (MB / cost.page + 1) * cost.page_s
    assert limits.sessions == MOST_SESSIONS or voices + (limits.sessions + 1) * (each + cost.page) > room


@given(free=free_bytes, more=st.integers(0, 10**11), cost=costs)
def test_more_memory_is_never_fewer_sessions(free: int, more: int, cost: Costs) -> None:
    before, after = chosen(free, cost), chosen(free + more, cost)
    assert before is None or (after is not None and after.sessions >= before.sessions)


@given(
    free=free_bytes,
    cost=costs,
    flow_mb=st.sampled_from([0, 100, 5_000, 50_000]),
    cache=st.sampled_from([0, 5_000, 1_000_000]),
    reserved_s=st.sampled_from([0.0, 4.0, 20.0]),
)
def test_what_is_set_is_kept_and_bounds_the_sessions(free: int, cost: Costs, flow_mb: int, cache: int, reserved_s: float) -> None:
    config = replace(DEFAULTS, flow_state_mb=flow_mb, kv_cache_tokens=cache, reserved_speech_s=reserved_s)
    limits = chosen(free, cost, config)
    if limits is None:
        return
    assert not flow_mb or limits.flow_state_mb == flow_mb
    assert not reserved_s or limits.reserved_speech_s == reserved_s
    assert not cache or limits.sessions <= max(1, cache // cost.session_tokens)
    if flow_mb > cost.page // MB + 1 and limits.sessions > 1:
        assert limits.sessions * (reserved_s or SURE_S) + VOICES_S <= pages_of(limits, cost) * cost.page_s


@given(first=free_bytes, second=free_bytes, cost=costs)
def test_with_two_gpus_the_scarcer_one_decides(first: int, second: int, cost: Costs) -> None:
    def sessions(language_model: int, speech: int) -> int:
        try:
            return choose(DEFAULTS, cost, Gpu(0, language_model), Gpu(1, speech)).sessions
        except ConfigError:
            return 0

    plenty = 10**15
    assert sessions(first, second) == min(sessions(first, plenty), sessions(plenty, second))
    shared = chosen(min(first, second), cost)
    assert sessions(first, second) >= (shared.sessions if shared else 0)


def test_a_model_on_the_cpu_takes_no_memory_of_the_gpu() -> None:
    alone = choose(DEFAULTS, RELEASED, None, Gpu(0, 24 * 10**9))
    assert alone.sessions > choose(DEFAULTS, RELEASED, Gpu(0, 24 * 10**9), Gpu(0, 24 * 10**9)).sessions
    assert choose(DEFAULTS, RELEASED, Gpu(0, 24 * 10**9), None) == Limits(MOST_SESSIONS)
    assert choose(DEFAULTS, replace(RELEASED, page=0), Gpu(0, 9 * 10**9), Gpu(0, 9 * 10**9)).flow_state_mb is None


def test_bounded_context_has_what_the_flow_counts_for_it() -> None:
    left = choose(replace(DEFAULTS, left_context_chunks=20), RELEASED, Gpu(0, 80 * 10**9), Gpu(0, 80 * 10**9))
    assert pages_of(left, RELEASED) >= 60 * left.sessions + VOICES_S


@pytest.mark.parametrize(
    ("flow", "speech", "sessions"),
    [(FlowConfig(), SPEECH_BYTES, (256, 64, 64, 32)), (DitFlowConfig(), SPEECH_BYTES + DIT_BYTES, (256, 30, 60, 16))],
    ids=["CosyVoice2", "CosyVoice3"],
)
def test_cards_carry_their_callers(flow: FlowConfig | DitFlowConfig, speech: int, sessions: Sequence[int]) -> None:
    """A card has its nominal 10^9 bytes at least; 2 % are taken by its driver."""
    for (card_gb, steps), least in zip([(80, 10), (24, 10), (24, 5), (16, 5)], sessions, strict=True):
        sizes: Any = replace(flow, n_timesteps=steps)
        cost = replace(RELEASED, page=flow_page_bytes(sizes, torch.float16), speech=speech)
        limits = chosen(round(card_gb * 0.98e9), cost)
        assert limits is not None and limits.sessions >= least, (card_gb, steps)


@pytest.mark.parametrize("directory", ["tiny_model_dir", "tiny_cosyvoice3_dir", "tiny_spark_dir"])
def test_costs_are_those_of_the_checkpoint(directory: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(directory)
    config = RuntimeConfig(model_dir=str(path), solver_steps=10)
    few, many = costs_of(config, 64), costs_of(config, 640)
    assert many.session == 10 * few.session > 0 and few.weights == many.weights > 0
    page, halved = few.page, costs_of(replace(config, solver_steps=5), 64).page
    assert page == halved == 0 if directory == "tiny_spark_dir" else 0.4 * page < halved < 0.7 * page
    assert costs_of(replace(config, dtype="float32"), 64).page >= page
    assert few.speech == SPEECH_BYTES + (DIT_BYTES if directory == "tiny_cosyvoice3_dir" else 0)


def test_the_flow_finds_the_chosen_limits_large_enough(tiny_model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = RuntimeConfig(model_dir=str(tiny_model_dir), device="cpu", num_threads=1)
    limits = chosen(525_000_000, replace(costs_of(replace(config, dtype="float32"), 64), weights=0))
    assert limits is not None and limits.flow_state_mb is not None and limits.reserved_speech_s == SURE_S
    config = replace(config, max_sessions=limits.sessions, flow_state_mb=limits.flow_state_mb)
    for reserved_s, is_too_small in ((limits.reserved_speech_s, False), (0.0, True)):  # 0: ten seconds for each session
        caplog.clear()
        load_renderer(replace(config, reserved_speech_s=reserved_s))
        assert ("starts beyond that get BUSY" in caplog.text) == is_too_small
