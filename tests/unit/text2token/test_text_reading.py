"""The text token that one attention head looks at most, as each tier reads it while it decodes many sequences."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.checkpoints.config import LanguageModelConfig
from bistream.config import RuntimeConfig
from bistream.errors import ConfigError
from bistream.text2token.attention import attend_causal
from bistream.text2token.engine import SamplingSpec, TurnLimits, TurnResult
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.graphs.runner import BLOCK_SIZE, GraphStepRunner
from bistream.text2token.graphs.weights import fold_weights
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.sampler import RepetitionAwareSampler
from bistream.text2token.step_runner import EagerRunner, StepRunner
from bistream.text2token.text_reading import head_of
from bistream.text2token.torch_engine import TorchEngine, TorchSequence
from tests.plain_step import PlainKernels
from tests.unit.text2token import tiny

CONFIG = tiny.CONFIG
TEXT_IDS = CONFIG.text_vocab_size
KINDS = ["plain", "graphs"]


@dataclass
class Sink:
    """What one turn says, and how many texts were left at each id."""

    ids: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    ended: bool = False

    def on_ids(self, ids: Sequence[int], texts_left: int | None = None) -> None:
        self.ids += ids
        if texts_left is not None:
            self.left.append(texts_left)

    def on_end(self, result: TurnResult) -> None:
        self.ended = True


def engine_of(model: Qwen2Model, head: tuple[int, int] | None, kind: str = "plain") -> TorchEngine:
    """graphs: their plain form; ``tests/gpu/text2token/test_text_reading.py`` has the kernels."""
    sizes = EngineSettings(max_sessions=4, max_rows=32, kv_cache_tokens=2048, block_size=8, knows_texts=head is not None)
    runner: StepRunner = EagerRunner(model, sizes, RepetitionAwareSampler(), head)
    if kind == "graphs":
        sizes = replace(sizes, block_size=BLOCK_SIZE)
        weights = fold_weights(model.weights, CONFIG, torch.device("cpu"), torch.float32)
        runner = GraphStepRunner(CONFIG, weights, sizes, head=head, make_kernels=PlainKernels)
    return TorchEngine(runner, sizes, threaded=False)


@torch.inference_mode()
def attended(model: Qwen2Model, ids: Sequence[int], head: tuple[int, int]) -> list[int]:
    """For each place of a whole sequence, computed at once: text ids up to it that come behind the one with the most weight."""
    found: list[int] = []

    def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if layer == head[0]:
            group = head[1] * key.shape[1] // query.shape[1]
            for place in range(len(ids)):
                texts = [other for other in range(place + 1) if ids[other] < TEXT_IDS]
                scores = key[texts, group] @ query[place, head[1]]
                found.append(len(texts) - 1 - int(scores.argmax()) if texts else -1)
        return attend_causal(query, key, value)

    model.forward_embedded(model.embed(torch.tensor(ids)), torch.arange(len(ids)), attend)
    return found


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5)
@given(seed=st.integers(0, 10_000), layer=st.integers(0, CONFIG.num_hidden_layers - 1), head=st.integers(0, CONFIG.num_attention_heads - 1))
def test_each_id_comes_with_what_its_place_attends_to(kind: str, seed: int, layer: int, head: int) -> None:
    """Several sequences, texts in turns, equal beginnings that share their cache."""
    model, chance = tiny.tiny_model(), random.Random(seed)
    engine = engine_of(model, (layer, head), kind)
    shared = [model.space.sos, *(chance.randrange(TEXT_IDS) for _ in range(17))]
    rows: dict[str, list[int]] = {}
    sequences: dict[str, TorchSequence] = {}
    for turn in range(2):
        sinks: dict[str, tuple[Sink, int]] = {}
        for name in ("a", "b", "c"):
            new = [*shared] if turn == 0 else []
            new += [chance.randrange(TEXT_IDS) for _ in range(chance.randrange(1, 9))] + [model.space.task] * (turn == 1)
            if turn == 0:
                rows[name] = []
                sequences[name] = engine.open(name, SamplingSpec(seed=chance.randrange(99)), 200)
            sink = Sink()
            rows[name] += new
            sinks[name] = (sink, len(rows[name]))
            sequences[name].turn(new, TurnLimits(chance.randrange(3, 12), forbidden=frozenset(model.space.specials)), sink)
            for _ in range(chance.randrange(4)):
                engine.step()
        while not all(sink.ended for sink, _ in sinks.values()):
            assert engine.step()
        for name, (sink, begin) in sinks.items():
            rows[name] += sink.ids
            expected = attended(model, rows[name], (layer, head))
            assert sink.left == expected[begin - 1 : begin - 1 + len(sink.ids)]
    engine.close()


@pytest.mark.parametrize("kind", KINDS)
def test_reading_changes_no_id(kind: str) -> None:
    said = []
    for head in (None, (1, 0)):
        engine, sink = engine_of(tiny.tiny_model(), head, kind), Sink()
        engine.open("s", SamplingSpec(seed=3), 100).turn([1, 2, 3], TurnLimits(40), sink)
        while engine.step():
            pass
        engine.close()
        said.append(sink.ids)
        assert bool(sink.left) == (head is not None)
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("value", "own", "expected"), [("auto", None, None), ("auto", (1, 0), (1, 0)), ("none", (1, 0), None), ("0,3", (1, 0), (0, 3))]
)
def test_which_head_is_read(value: str, own: tuple[int, int] | None, expected: tuple[int, int] | None) -> None:
    sizes = LanguageModelConfig(num_hidden_layers=2, num_attention_heads=4, text_position_head=own)
    assert head_of(RuntimeConfig(text_position_head=value), sizes) == expected


def test_a_head_that_there_is_not() -> None:
    sizes = LanguageModelConfig(num_hidden_layers=2, num_attention_heads=4)
    with pytest.raises(ConfigError, match=r"'text_position_head' is '2,0', but the model has 2 layers of 4 heads, counted from 0"):
        head_of(RuntimeConfig(text_position_head="2,0"), sizes)
    with pytest.raises(ConfigError, match="set it to auto, none, or a layer and a head such as 2,0"):
        RuntimeConfig(text_position_head="first")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6)
@given(steps=st.integers(1, 4), beyond=st.integers(-2, 2), company=st.booleans(), before=st.sampled_from(("nothing", "same", "other")))
def test_a_prompt_of_several_steps_is_read_when_it_is_complete(kind: str, steps: int, beyond: int, company: bool, before: str) -> None:
    """A step that only feeds reads nothing, whatever the one before it read; before: who had the slot and the cache, of the same length."""
    model = tiny.tiny_model()
    engine = engine_of(model, (1, 0), kind)
    limits = TurnLimits(5, forbidden=frozenset(model.space.specials))
    ids = [7 + place % 90 * (place > 15) for place in range(engine.settings.max_rows * steps + beyond)]
    if before != "nothing":
        earlier = engine.open("before", SamplingSpec(), len(ids) + 20)
        earlier.turn(ids if before == "same" else ids[::-1], limits, Sink())
        while engine.step():
            pass
        earlier.close()
    if company:
        engine.open("beside", SamplingSpec(), 100).turn([4, 5, 6], TurnLimits(90, forbidden=limits.forbidden), Sink())
        engine.step()
    sink = Sink()
    engine.open("long", SamplingSpec(), len(ids) + 20).turn(ids, limits, sink)
    while not sink.ended:
        assert engine.step()
    engine.check_integrity()
    engine.close()
    expected = attended(model, [*ids, *sink.ids], (1, 0))
    assert engine.healthy and len(sink.ids) == 5 and sink.left == expected[len(ids) - 1 : len(ids) + 4]
