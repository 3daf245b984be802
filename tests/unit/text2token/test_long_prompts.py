"""Prompts of several steps, for every runner of steps that runs on a CPU."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.sampler import RepetitionAwareSampler
from bistream.text2token.step_runner import EagerRunner, StepRunner
from bistream.text2token.torch_engine import TorchEngine
from tests.unit.text2token.engine_conformance import FaultyRunner
from tests.unit.text2token.long_prompts import check_long_prompts
from tests.unit.text2token.test_graphs import make_runner
from tests.unit.text2token.tiny import tiny_model

MAX_ROWS = 16


@cache
def runner_of(kind: str) -> StepRunner:
    block_size = 64 if kind == "graphs" else 8
    sizes = EngineSettings(6, MAX_ROWS, 6 * 128, block_size, 128, knows_texts=kind == "plain with a head")
    if kind == "graphs":
        return make_runner(settings=sizes)
    plain = EagerRunner(tiny_model(), sizes, RepetitionAwareSampler(), (1, 0) if sizes.knows_texts else None)
    return FaultyRunner(plain, run_ahead=3) if kind == "running ahead" else plain


@pytest.mark.parametrize("kind", ["plain", "plain with a head", "running ahead", "graphs"])
def test_a_session_says_what_it_says_alone(kind: str) -> None:
    @settings(max_examples=3)
    @given(st.integers(0, 10**6))
    def check(seed: int) -> None:
        runner = runner_of(kind)
        check_long_prompts(lambda: TorchEngine(runner, runner.settings, threaded=False), seed)

    check()
