"""A one-table model on the engine: which ids are sampled, in any company; voices; what is refused when it is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch.nn.attention import flex_attention as flex

from bistream.checkpoints.model_dir import check_model_dir
from bistream.checkpoints.one_table import RELEASED, OneTableConfig
from bistream.config import RuntimeConfig
from bistream.errors import CheckpointError, ConfigError, EngineError, InvalidInputError
from bistream.families.spark import SPARK
from bistream.text2token.engine import SamplingSpec, TokenSpace, TurnEnd, TurnLimits
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.factory import LanguageModelParts, load_parts
from bistream.text2token.graphs.runner import BLOCK_SIZE, GraphStepRunner
from bistream.text2token.graphs.weights import fold_weights
from bistream.text2token.one_table.prompts import Labels, SpeakerTokens, begin_speech, clone_prompt
from bistream.text2token.one_table.sampling import make_sampler
from bistream.text2token.one_table.weights import build_weights, expected_shapes, load_state, voice_rows
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.step_runner import EagerRunner, StepRunner
from bistream.text2token.torch_engine import TorchEngine
from bistream.text2token.weights import ModelWeights
from tests.fakes import RecordingSink
from tests.plain_step import PlainKernels

SPEC = SamplingSpec(top_p=0.95, top_k=50, win_size=0, tau_r=0.0)
SETTINGS = EngineSettings(max_sessions=5, max_rows=32, kv_cache_tokens=5 * 512, block_size=BLOCK_SIZE, max_sequence_ids=512)
TEXTS = ("The weather was clear.", "你好，世界。", "Good night, and see you tomorrow!", "Numbers: 1 2 3", "a")
SPEAKER = SpeakerTokens(tuple(range(32)))


@pytest.fixture(scope="module")
def weights(model_dir: Path, sizes: OneTableConfig) -> ModelWeights:
    torch.set_num_threads(1)
    return build_weights(load_state(model_dir, "LLM"), sizes, torch.device("cpu"), torch.float32)


def plain_runner(sizes: OneTableConfig, weights: ModelWeights) -> StepRunner:
    return EagerRunner(Qwen2Model(sizes, weights), SETTINGS, make_sampler(sizes, torch.device("cpu")))


def graph_runner(sizes: OneTableConfig, weights: ModelWeights) -> StepRunner:
    return GraphStepRunner(sizes, fold_weights(weights, sizes, torch.device("cpu"), torch.float32), SETTINGS, make_kernels=PlainKernels)


@pytest.fixture(autouse=True)
def interpreted_attention(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``flex_attention`` warns outside compiled code that it is slow."""
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    return iter(())


def prompts(model: LanguageModelParts, sizes: OneTableConfig) -> list[list[int]]:
    tokens, encode = sizes.tokens, model.tokenizer.encode
    return [[*clone_prompt(tokens, encode, text, SPEAKER), *begin_speech(tokens, range(place))] for place, text in enumerate(TEXTS)]


def spoken(runner: StepRunner, work: Sequence[tuple[Sequence[int], SamplingSpec]], count: int = 20) -> list[list[int]]:
    """Sessions that begin one step after the other, with one that is cancelled between them."""
    engine = TorchEngine(runner, runner.settings, threaded=False)
    limits = TurnLimits(count, min_new_ids=5, forbidden_early=frozenset(runner.space.specials))
    sinks = []
    for number, (prompt, spec) in enumerate(work):
        sinks.append(RecordingSink())
        engine.open(f"{number}", spec, len(prompt) + count).turn(prompt, limits, sinks[-1])
        engine.step()
    while engine.step():
        pass
    engine.check_integrity()
    assert all(sink.result is not None and sink.result.end in (TurnEnd.STOP, TurnEnd.LENGTH) for sink in sinks)
    return [sink.ids for sink in sinks]


def test_a_session_speaks_the_same_in_any_company(model: LanguageModelParts, sizes: OneTableConfig, weights: ModelWeights) -> None:
    work = [(prompt, replace(SPEC, seed=seed, temperature=1.0 + 0.2 * seed)) for seed, prompt in enumerate(prompts(model, sizes))]
    together = spoken(plain_runner(sizes, weights), work)
    alone = [spoken(plain_runner(sizes, weights), [one])[0] for one in work]
    assert together == alone
    space = TokenSpace.of(sizes)
    assert all(map(space.is_speech, [one for ids in together for one in ids])) and len({tuple(ids) for ids in together}) == len(work)


def test_the_recorded_steps_speak_the_same(model: LanguageModelParts, sizes: OneTableConfig, weights: ModelWeights) -> None:
    work = [(prompt, replace(SPEC, seed=seed)) for seed, prompt in enumerate(prompts(model, sizes))]
    assert spoken(graph_runner(sizes, weights), work[:2], 6) == spoken(plain_runner(sizes, weights), work[:2], 6)


@pytest.mark.parametrize("make", [plain_runner, graph_runner])
def test_a_voice_is_pitch_speed_and_global_tokens(
    make: Callable[[OneTableConfig, ModelWeights], StepRunner], model: LanguageModelParts, sizes: OneTableConfig, weights: ModelWeights
) -> None:
    """In the recorded steps, too; a greedy one and two with seeds."""
    rows = weights.embedding[voice_rows(sizes)]
    of_voices = replace(weights, head_weight=rows, head_bias=torch.zeros(len(rows)))
    runner = make(sizes.of_voices, of_voices)
    phases = sizes.voice_phases
    engine = TorchEngine(runner, runner.settings, threaded=False)
    sinks = []
    for number, spec in enumerate((replace(SPEC, temperature=0.0), replace(SPEC, seed=1), replace(SPEC, seed=2))):
        sinks.append(RecordingSink())
        limits = TurnLimits(6, forbidden=frozenset(runner.space.specials))
        engine.open(f"{number}", spec, 100).turn(clone_prompt(sizes.tokens, model.tokenizer.encode, TEXTS[0], SPEAKER), limits, sinks[-1])
        engine.step()
    while engine.step():
        pass
    for sink in sinks:
        found = [runner.space.speech_token(one) for one in sink.ids]
        assert [phases.index(next(phase for phase in phases if one in phase)) for one in found] == [0, 1, 2, 2, 2, 2]


def test_voices_are_made_side_by_side_as_alone(model: LanguageModelParts, sizes: OneTableConfig) -> None:
    designer = model.designer
    labels, seeds = Labels("female", "high"), range(3)
    alone = [designer.make(labels, seed) for seed in seeds]
    made: dict[int, object] = {}
    for seed in seeds:
        designer.begin(labels, seed, lambda voice, seed=seed: made.update({seed: voice}))  # type: ignore[misc]
    while len(made) < len(seeds):
        torch.ones(1).add(1)
    assert [made[seed] for seed in seeds] == alone and len(set(alone)) == 3
    assert designer.make(labels, 0, "Another text.") not in alone
    for voice in alone:
        assert voice.labels == labels and voice.ids(sizes.tokens)
    assert model.designer._engine.stats().sessions == 0


def test_a_voice_of_a_long_text_is_refused(model: LanguageModelParts, sizes: OneTableConfig) -> None:
    designer = model.designer
    with pytest.raises(InvalidInputError, match="a text of at most 467 tokens"):
        designer.begin(Labels("male"), 0, lambda voice: None, "x " * 600)
    assert model.designer._engine.stats().sessions == 0


def test_a_cancelled_voice_is_an_error(model: LanguageModelParts, sizes: OneTableConfig) -> None:
    designer, found = model.designer, list[object]()
    designer.begin(Labels("male"), 0, found.append)()
    while not found:
        torch.ones(1).add(1)
    assert isinstance(found[0], (EngineError, SpeakerTokens)) and model.designer._engine.stats().sessions == 0


# -- loading -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(model_dir: Path, tmp_path: Path) -> Path:
    """With something in place of the codec's files, which are not read here."""
    copy = Path(shutil.copytree(model_dir, tmp_path / "copy"))
    for (name,) in SPARK.required_files:
        if not (copy / name).exists():
            (copy / name).parent.mkdir(exist_ok=True)
            (copy / name).write_text("{}", encoding="utf-8")
    return copy


def refused(directory: Path, config: RuntimeConfig, kind: type[Exception] = CheckpointError) -> str:
    """What loading says."""
    with pytest.raises(kind) as caught:
        load_parts(replace(config, model_dir=str(directory)))
    return str(caught.value)


def test_float16_is_refused(directory: Path, config: RuntimeConfig) -> None:
    assert refused(directory, replace(config, dtype="float16"), ConfigError) == (
        "Parameter 'dtype' is float16, in which this model's scores become NaN; set it to auto, bfloat16 or float32."
    )


def test_no_kernels(directory: Path, config: RuntimeConfig) -> None:
    assert "recorded graphs need a CUDA GPU" in refused(directory, replace(config, kernels="graphs"), ConfigError)


def test_bfloat16_is_served(directory: Path, config: RuntimeConfig, sizes: OneTableConfig) -> None:
    model = load_parts(replace(config, model_dir=str(directory), dtype="bfloat16"))
    sink = RecordingSink()
    prompt = prompts(model, sizes)[0]
    model.engine.open("a", SPEC, 200).turn(prompt, TurnLimits(5), sink)
    voice = model.designer.make(Labels("male"), 0)
    model.close()
    assert len(voice.global_tokens) == 32


@pytest.mark.parametrize("name", ["LLM/model.safetensors", "LLM/tokenizer.json", "LLM/config.json", "BiCodec/config.yaml", "config.yaml"])
def test_a_missing_file_is_named(directory: Path, config: RuntimeConfig, name: str) -> None:
    (directory / name).unlink()
    sentence = refused(directory, config)
    assert sentence.startswith(f"{name} is missing in the model directory") and "\n" not in sentence
    with pytest.raises(CheckpointError, match=f"has no {name}"):
        check_model_dir(directory)


def test_keys_are_compared(directory: Path, config: RuntimeConfig) -> None:
    path = directory / "LLM/model.safetensors"
    state = load_file(path)
    save_file({**state, "lm_head.weight": state["model.embed_tokens.weight"].clone()}, path)
    assert "has the unexpected key lm_head.weight" in refused(directory, config)
    save_file({key: value for key, value in state.items() if key != "model.norm.weight"}, path)
    assert "lacks the key model.norm.weight" in refused(directory, config)
    save_file({**state, "model.norm.weight": state["model.norm.weight"][:-1].clone()}, path)
    assert "key model.norm.weight has shape [127]" in refused(directory, config)
    path.write_bytes(path.read_bytes()[:1000])
    assert refused(directory, config).startswith("LLM/model.safetensors could not be read")


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("LLM/config.json", "vocab_size", 2000), ("LLM/config.json", "eos_token_id", None), ("config.yaml", "sample_rate", 1)],
)
def test_sizes_that_do_not_fit(directory: Path, config: RuntimeConfig, name: str, key: str, value: object) -> None:
    path = directory / name
    path.write_text(json.dumps({**yaml.safe_load(path.read_text(encoding="utf-8")), key: value}), encoding="utf-8")  # YAML reads JSON, too
    assert name in refused(directory, config)


def test_keys_of_the_release() -> None:
    full = OneTableConfig.of({"vocab_size": 166_000}, RELEASED, SPARK)
    shapes = expected_shapes(full)
    assert len(shapes) == 290 and shapes["model.embed_tokens.weight"] == (166_000, 896)
    assert TokenSpace.of(full).num_scores == 8193
