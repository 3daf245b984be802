"""A model with one table of text and speech over TensorRT-LLM: the same sentences as on the torch engine, each a prompt of its own."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bistream.checkpoints.one_table import OneTableConfig
from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.families.spark import SPARK
from bistream.text2token import factory
from bistream.text2token.engine import Engine, TokenSpace
from bistream.text2token.factory import LanguageModelParts, load_parts
from bistream.text2token.one_table.prompts import SpeakerTokens
from bistream.text2token.one_table.weights import build_weights, load_state
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.service import LanguageModelStart, SpeechTokenService
from bistream.text2token.speech_lengths import SpeechLengths
from bistream.text2token.tensorrt_llm.merged_ids import MergedIds
from bistream.text2token.tensorrt_llm.sequences import sizes_of
from bistream.types import GenerationOptions, SpeechTokens
from tests.unit.text2token.tensorrt_llm.bench import PortBench
from tests.unit.text2token.tensorrt_llm.test_parity import network

TEXT = "The weather was clear, so we walked along the river. She asked whether the train would arrive on time."
LONGEST = 30  # speech tokens of a sentence: random weights rarely end one


@pytest.fixture
def config(tiny_spark_dir: Path) -> RuntimeConfig:
    return RuntimeConfig(model_dir=str(tiny_spark_dir), device="cpu", max_sessions=2, drain_timeout_s=0.0)


@pytest.fixture
def sizes(tiny_spark_dir: Path) -> OneTableConfig:
    found = read_config(tiny_spark_dir).language_model
    assert isinstance(found, OneTableConfig)
    return found


@pytest.fixture
def bench(config: RuntimeConfig, sizes: OneTableConfig, tiny_spark_dir: Path, monkeypatch: pytest.MonkeyPatch) -> PortBench:
    """It computes the checkpoint, and is what ``engine: tensorrt_llm`` loads."""
    monkeypatch.setattr(SpeechLengths, "most", lambda *_: LONGEST)
    weights = build_weights(load_state(tiny_spark_dir, SPARK.text_directory), sizes, torch.device("cpu"), torch.float32)
    merged = MergedIds(TokenSpace.of(sizes), sizes.table_size, 128 * (2 + (sizes.table_size + sizes.num_scores) // 128))
    made: list[PortBench] = []

    def make_engine(bounded: RuntimeConfig, recorder: object) -> Engine:
        made.append(PortBench(network(Qwen2Model(sizes, weights), merged), sizes_of(bounded, sizes), merged))
        return made[0].engine

    monkeypatch.setattr(factory, "make_engine", make_engine)
    load_parts(replace(config, engine="tensorrt_llm"))
    return made[0]


def parts_of(bench: PortBench, config: RuntimeConfig) -> LanguageModelParts:
    own = load_parts(config)
    own.close()
    return LanguageModelParts(own.tokenizer, own.sizes, bench.engine, SPARK, own.card)


def speak(parts: LanguageModelParts, config: RuntimeConfig, options: GenerationOptions, step: Callable[[], object]) -> Iterator[int]:
    """Codes of the whole text."""
    messages: queue.SimpleQueue[SpeechTokens | BistreamError] = queue.SimpleQueue()
    service = SpeechTokenService(config, parts=parts, run_timer=False)
    speaker = np.array(SpeakerTokens(tuple(range(32))).numbers, np.int32)
    service.start(LanguageModelStart("a", TEXT.encode(), True, "", np.zeros(0, np.int32), options, speaker), messages.put)
    is_final = False
    while not is_final:
        while messages.empty():
            step()
        message = messages.get()
        assert not isinstance(message, BistreamError), message
        yield from message.token_ids
        is_final = message.is_final
    service.close()


def test_a_greedy_text_equals_the_torch_engine(bench: PortBench, config: RuntimeConfig, sizes: OneTableConfig) -> None:
    greedy = GenerationOptions(temperature=0.0)
    found = list(speak(parts_of(bench, config), config, greedy, bench.step))
    assert found == list(speak(load_parts(config), config, greedy, lambda: None))
    begins = [ids for ids, sampling in bench.library.requests if ids[-1] < sizes.table_size]
    assert len(begins) == 2 and len(found) == 2 * LONGEST, "a sequence for each sentence"
    assert all(ids[:2] == [sizes.tokens.id("task_tts"), sizes.tokens.id("start_content")] for ids in begins)
    assert begins[1][: len(begins[0])] != begins[0]


def test_sampling_is_that_of_the_release(bench: PortBench, config: RuntimeConfig, sizes: OneTableConfig) -> None:
    """TensorRT-LLM takes top-p within the top-k candidates, as the reference does. A request's temperature counts in the usual one."""
    list(speak(parts_of(bench, config), config, GenerationOptions(temperature=0.5), bench.step))
    for _, sampling in bench.library.requests:
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (pytest.approx(0.4), 50, 0.95)
        assert sampling.stop_token_ids == [] and sampling.end_id == sizes.table_size + sizes.speech_token_size
