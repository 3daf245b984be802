"""The smoke test of an engine: what it calls right, and that it notices a wrong one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from bistream.checkpoints.reader import load_state_dict
from bistream.config import RuntimeConfig
from bistream.conversion.records import write_folder
from bistream.conversion.smoke_test import compare
from bistream.errors import ConfigError
from bistream.text2token.factory import load_parts
from scripts import test_engine
from tests.unit.text2token.tiny import SPACE, tiny_model

PROMPT = [SPACE.sos, 5, 6, 7, SPACE.task]


def greedy(prompt: Sequence[int], count: int, ranks: Sequence[int] = ()) -> list[int]:
    """Ids that the tiny model decodes; ``ranks``: which choice to take at each position (0: the best)."""
    model, ids = tiny_model(), list(prompt)
    for index in range(count):
        with torch.inference_mode():
            scores = model.logits(model.forward_dense(torch.tensor(ids)))[-1]
        order = scores.argsort(descending=True)
        ids.append(int(order[ranks[index] if index < len(ranks) else 0]) + SPACE.speech_offset)
    return ids[len(prompt) :]


@given(ranks=st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_an_id_that_is_not_the_best_one_is_found(ranks: list[int]) -> None:
    found, expected = greedy(PROMPT, len(ranks), ranks), greedy(PROMPT, len(ranks))
    result = compare(tiny_model(), PROMPT, found, expected)
    assert result.num_ids == len(ranks)
    assert result.num_equal == next((index for index, rank in enumerate(ranks) if rank), len(ranks))
    assert result.is_right(0.0) == (not any(ranks))


def test_a_near_tie_is_right_within_the_tolerance() -> None:
    found = greedy(PROMPT, 4, [0, 0, 1])
    result = compare(tiny_model(), PROMPT, found, greedy(PROMPT, 4))
    assert 0 < result.worst_gap
    assert result.is_right(result.worst_gap) and not result.is_right(0.99 * result.worst_gap)


@pytest.mark.parametrize("strange", [3, SPACE.sos])
def test_an_id_that_the_head_cannot_produce_is_never_right(strange: int) -> None:
    result = compare(tiny_model(), PROMPT, [*greedy(PROMPT, 2), strange], greedy(PROMPT, 3))
    assert not result.is_right(1e9)


def test_no_id_at_all_is_not_right() -> None:
    assert not compare(tiny_model(), PROMPT, [], greedy(PROMPT, 3)).is_right(1e9)


@pytest.fixture(params=("tiny_model_dir", "tiny_cosyvoice3_dir", "tiny_spark_dir"))
def model_dir(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def smoke(model_dir: Path, *options: str) -> int:
    return test_engine.main(["--model-dir", str(model_dir), "--max-new", "8", *options])


def test_the_torch_engine_passes_its_own_test(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke(model_dir, "--engine", "torch", "--device", "cpu", "--dtype", "float32") == 0
    output = capsys.readouterr().out
    assert output.count("right: ") == 2 and "8 leading ids of 8" in output
    assert smoke(model_dir, "--engine", "torch", "--device", "cpu", "--dtype", "bfloat16", "--text", "Hello there.") == 0


def test_without_tensorrt_llm_one_sentence_says_so(model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke(model_dir, "--engine-dir", str(tmp_path)) == 1
    error = capsys.readouterr().err
    assert error.startswith("test_engine.py: ") and len(error.strip().splitlines()) == 1 and "tensorrt_llm" in error


def test_the_engine_of_another_checkpoint_is_noticed(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same but for the last norm."""
    other = Path(shutil.copytree(model_dir, tmp_path / "other"))
    if (other / "llm.pt").is_file():
        state = load_state_dict(model_dir / "llm.pt")
        state["llm.model.model.norm.weight"] = -state["llm.model.model.norm.weight"]
        torch.save(state, other / "llm.pt")
    else:
        tensors = load_file(model_dir / "LLM/model.safetensors")
        save_file({**tensors, "model.norm.weight": -tensors["model.norm.weight"]}, other / "LLM/model.safetensors")
    loaded = [load_parts(RuntimeConfig(model_dir=str(one), device="cpu", max_sessions=1)) for one in (other, model_dir)]
    monkeypatch.setattr(test_engine, "load_parts", lambda config: loaded.pop(0))
    assert smoke(model_dir, "--text", "Hello there.") == 1
    output = capsys.readouterr()
    assert "WRONG: Hello there." in output.out and "decodes other ids than the torch engine" in output.err


def test_records_of_conversions(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "data").write_text("x")

    def fail(folder: Path) -> None:
        raise OSError("disk full")

    out = tmp_path / "out"
    assert write_folder(out, {"of": "a"}, write)
    assert not write_folder(out, {"of": "a"}, fail), "the same is not made again"
    with pytest.raises(OSError, match="disk full"):
        write_folder(out, {"of": "b"}, fail)
    assert (out / "data").read_text() == "x" and json.loads((out / "conversion.json").read_text())["of"] == "a"
    assert write_folder(out, {"of": "b"}, write)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (out / "conversion.json").unlink()
    with pytest.raises(ConfigError, match="was not made by a conversion"):
        write_folder(out, {"of": "b"}, write)
