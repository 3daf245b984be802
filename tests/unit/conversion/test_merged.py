"""The merged checkpoint: upstream's ids, the same logits in transformers, and nothing lost on the way back."""

from __future__ import annotations

import json
import resource
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bistream.checkpoints.config import LanguageModelConfig
from bistream.checkpoints.reader import load_state_dict, read_config
from bistream.conversion.merged import (
    HEAD,
    architecture_of,
    load_tensors,
    merged_state,
    save_tensors,
    split_state,
    vocabulary_of,
    write_llm_pt,
    write_merged,
)
from bistream.conversion.vocabulary import MergedVocabulary
from bistream.errors import CheckpointError
from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.tensorrt_llm.merged_ids import HEAD_BIAS
from bistream.text2token.weights import load_weights
from scripts.convert_checkpoint import main
from tests.unit.text2token.tiny import CONFIG, random_state

RELEASED = MergedVocabulary(text_size=151_663, speech_token_size=6561, rows=COSYVOICE2.rows)
RELEASED3 = MergedVocabulary(text_size=151_924, speech_token_size=6561, rows=COSYVOICE3.rows)
CONFIGS = {"cosyvoice2": CONFIG, "cosyvoice3": replace(CONFIG, rows=COSYVOICE3.rows, head_has_bias=False)}
ROUNDING = 1e-4  # float32 sums in another order; the scores are of size 10


@pytest.fixture(scope="module", params=("cosyvoice2", "cosyvoice3"))
def model_dir(request: pytest.FixtureRequest, tiny_model_dir: Path, tiny_cosyvoice3_dir: Path) -> Path:
    return tiny_model_dir if request.param == "cosyvoice2" else tiny_cosyvoice3_dir


@pytest.fixture(scope="module")
def merged_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("merged")
    write_merged(model_dir, out, torch.float32)
    return out


@pytest.fixture
def modules_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers puts the code of a checkpoint before it loads it."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))


def test_the_ids_of_the_released_model_are_upstreams() -> None:
    assert (RELEASED.speech_offset, RELEASED.eos, RELEASED.fill) == (151_663, 158_224, 158_226)
    assert (RELEASED.sos, RELEASED.task, RELEASED.size) == (158_227, 158_228, 158_336)
    assert (RELEASED3.speech_offset, RELEASED3.sos, RELEASED3.eos) == (151_924, 158_485, 158_486)
    assert (RELEASED3.task, RELEASED3.fill, RELEASED3.size) == (158_487, 158_488, 158_720)
    names = RELEASED3.added_tokens()
    assert names[6561:6566] == ["<|sos|>", "<|eos1|>", "<|task_id|>", "<|fill|>", "<|s_6565|>"]
    assert names[-1] == "<|s_6760|>" and RELEASED3.speech_offset + len(names) == 158_685


def test_everything_that_ends_a_turn_ends_what_transformers_samples() -> None:
    assert RELEASED.stop_ids == [158_224, 158_225, 158_226]
    assert RELEASED3.stop_ids == [158_486, 158_485, 158_487, 158_488], "eos first"


@pytest.mark.usefixtures("modules_cache")
def test_logits_in_transformers_are_ours(merged_dir: Path, model_dir: Path) -> None:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415  (takes seconds)

    checkpoint = read_config(model_dir)
    config = checkpoint.language_model
    ours = Qwen2Model(config, load_weights(model_dir, config, torch.device("cpu"), torch.float32))
    theirs = AutoModelForCausalLM.from_pretrained(merged_dir, trust_remote_code=True, dtype=torch.float32)
    assert type(theirs).__name__ == architecture_of(checkpoint.family)
    trained = dict(theirs.named_parameters())
    assert (HEAD_BIAS in trained) is config.head_has_bias, "a bias would be trained that llm.pt has no place for"
    vocabulary = vocabulary_of(model_dir, config)
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(vocabulary.text_size, (20,), generator=generator)
    speech = torch.randint(vocabulary.head_rows, (30,), generator=generator)
    own_ids = torch.cat([torch.tensor([ours.space.sos]), text, torch.tensor([ours.space.task]), speech + ours.space.speech_offset])
    merged_ids = torch.cat([torch.tensor([vocabulary.sos]), text, torch.tensor([vocabulary.task]), speech + vocabulary.speech_offset])
    with torch.inference_mode():
        expected = ours.logits(ours.forward_dense(own_ids))
        found = theirs(merged_ids[None]).logits[0]
    rows = slice(vocabulary.speech_offset, vocabulary.speech_offset + vocabulary.head_rows)
    assert expected.std() > 0.5
    torch.testing.assert_close(found[:, rows], expected, atol=ROUNDING, rtol=0)
    others = torch.ones(vocabulary.size, dtype=torch.bool)
    others[rows] = False
    assert torch.all(found[:, others] == float("-inf")), "an id that is no speech could be sampled"


def test_the_tokenizer_in_transformers_has_the_merged_ids(merged_dir: Path, model_dir: Path) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415

    theirs, ours = AutoTokenizer.from_pretrained(merged_dir), TextTokenizer.from_model_dir(model_dir)
    vocabulary = vocabulary_of(model_dir, read_config(model_dir).language_model)
    for text in ("The weather was clear.", "你好，世界 [breath] 12", "<|endofprompt|>a\nb"):
        assert theirs.encode(text) == ours.encode(text)
    last = vocabulary.first_special - 1
    expected = [vocabulary.sos, *ours.encode("Hello"), vocabulary.task, vocabulary.speech_offset, last, vocabulary.fill]
    fill = vocabulary.rows.names[vocabulary.rows.fill]
    assert theirs.encode(f"<|sos|>Hello<|task_id|><|s_0|><|s_6560|>{fill}") == expected
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "<|s_7|>"}]
    spoken = theirs.apply_chat_template(chat, tokenize=False)
    assert spoken == "<|sos|>Hello<|task_id|><|s_7|>"
    assert theirs.decode(expected[1:-4]) == "Hello"


def test_the_way_there_and_back_is_exact(merged_dir: Path, model_dir: Path, tmp_path: Path) -> None:
    write_llm_pt(merged_dir, model_dir, tmp_path / "llm.pt")
    before, after = load_state_dict(model_dir / "llm.pt"), load_state_dict(tmp_path / "llm.pt")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    embedding, head = (after[key] for key in ("llm.model.model.embed_tokens.weight", "llm.model.lm_head.weight"))
    assert embedding.data_ptr() == head.data_ptr()
    assert (tmp_path / "llm.pt").stat().st_size < 1.05 * (model_dir / "llm.pt").stat().st_size


@given(family=st.sampled_from(sorted(CONFIGS)), text_size=st.integers(150, CONFIG.text_vocab_size), keep=st.booleans())
def test_rows_beyond_the_tokenizer_come_back_only_where_they_are_known(family: str, text_size: int, keep: bool) -> None:
    config = CONFIGS[family]
    state = random_state(config)
    state["llm.model.lm_head.weight"] = state["llm.model.model.embed_tokens.weight"]
    vocabulary = MergedVocabulary(text_size, config.speech_token_size, config.rows)
    unused = state["llm.model.model.embed_tokens.weight"][text_size:]
    back = split_state(merged_state(state, vocabulary, torch.float32), config, vocabulary, unused if keep else None)
    expected = state["llm.model.model.embed_tokens.weight"].clone()
    if not keep:
        expected[text_size:] = 0
    assert torch.equal(back.pop("llm.model.model.embed_tokens.weight"), expected)
    assert torch.equal(back.pop("llm.model.lm_head.weight"), expected)
    assert state.keys() - back.keys() == {"llm.model.model.embed_tokens.weight", "llm.model.lm_head.weight"}
    assert all(torch.equal(state[key], tensor) for key, tensor in back.items())


def test_bfloat16_rounds_once(model_dir: Path, tmp_path: Path) -> None:
    write_merged(model_dir, tmp_path, torch.bfloat16)
    merged, state = load_tensors(tmp_path / "model.safetensors"), load_state_dict(model_dir / "llm.pt")
    assert {tensor.dtype for tensor in merged.values()} == {torch.bfloat16}
    assert torch.equal(merged["model.norm.weight"], state["llm.model.model.norm.weight"].bfloat16())
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_a_merged_checkpoint_that_lost_the_bias_is_refused(merged_dir: Path, model_dir: Path, tmp_path: Path) -> None:
    tensors = load_tensors(merged_dir / "model.safetensors")
    del tensors[HEAD_BIAS]
    save_tensors(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head\.bias.*is lost"):
        write_llm_pt(tmp_path, model_dir, tmp_path / "llm.pt")


def test_a_trained_bias_that_llm_pt_has_no_place_for_is_refused(tiny_cosyvoice3_dir: Path, tmp_path: Path) -> None:
    write_merged(tiny_cosyvoice3_dir, tmp_path, torch.float32)
    tensors = load_tensors(tmp_path / "model.safetensors")
    tensors[HEAD_BIAS] = tensors[HEAD_BIAS] + 0.25
    save_tensors(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="no place for it"):
        write_llm_pt(tmp_path, tiny_cosyvoice3_dir, tmp_path / "llm.pt")


def test_a_merged_checkpoint_of_other_sizes_is_refused(merged_dir: Path, model_dir: Path, tmp_path: Path) -> None:
    tensors = load_tensors(merged_dir / "model.safetensors")
    tensors[HEAD] = tensors[HEAD][:-128].clone()
    save_tensors(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight has shape"):
        write_llm_pt(tmp_path, model_dir, tmp_path / "llm.pt")


def test_a_tokenizer_that_does_not_fit_is_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model_dir, tmp_path / "model")
    config = tmp_path / "model" / COSYVOICE2.text_directory / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 1024', '"vocab_size": 1000'))
    with pytest.raises(CheckpointError, match="tokenizer files have 1024 ids"):
        write_merged(tmp_path / "model", tmp_path, torch.float32)


def test_full_size_has_the_shapes_of_upstreams_checkpoint() -> None:
    """Shapes alone: tensors without storage."""
    from bistream.text2token.weights import expected_shapes  # noqa: PLC0415

    full = LanguageModelConfig()
    for vocabulary, config in ((RELEASED, full), (RELEASED3, replace(full, rows=COSYVOICE3.rows, head_has_bias=False))):
        state = {key: torch.empty(shape, device="meta") for key, shape in expected_shapes(config).items()}
        with torch.device("meta"):
            merged = merged_state(state, vocabulary, torch.bfloat16)
        assert merged["model.embed_tokens.weight"].shape == merged[HEAD].shape == (vocabulary.size, 896)
        assert merged[HEAD_BIAS].shape == (vocabulary.size,)
        assert len(merged) == 24 * 12 + 4


def test_a_file_that_cannot_be_written_is_not_left_half(
    merged_dir: Path, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit on the size of a file stands for a full disk."""
    limits, back, there = resource.getrlimit(resource.RLIMIT_FSIZE), str(tmp_path / "llm.pt"), str(tmp_path / "merged")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        assert main(["llm_pt", "--merged", str(merged_dir), "--model-dir", str(model_dir), "--out", back]) == 1
        assert main(["huggingface", "--model-dir", str(model_dir), "--out", there]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    error = capsys.readouterr().err
    assert error.count("could not be written") == len(error.strip().splitlines()) == 2, error
    assert list(tmp_path.iterdir()) == []
