"""What 16 bit costs: measured on healthy and on overflowing random weights, by the server at its start and by ``bistream doctor``."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bistream.checkpoints.reader import load_state_dict, read_config
from bistream.commands import doctor
from bistream.config import RuntimeConfig
from bistream.gpu.fidelity import Ranges, ratio_db
from bistream.text2token import fidelity as language_model
from bistream.text2token import step_runners
from bistream.text2token.step_runner import EagerRunner
from bistream.text2token.torch_engine import TorchEngine
from bistream.token2mel import state_rows
from bistream.token2wav import fidelity as token2wav

LAYER = "llm.model.model.layers.0"


def spoil(model_dir: Path, name: str, key: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    state = {key: value.clone() for key, value in load_state_dict(model_dir / name).items()}
    state[key] = change(state[key])
    torch.save(state, model_dir / name)


def overflow_language_model(model_dir: Path) -> None:
    """Norms follow: in float32 nothing is lost."""
    spoil(model_dir, "llm.pt", f"{LAYER}.mlp.down_proj.weight", lambda weight: weight * 1e7)


def overflow_flow(model_dir: Path) -> None:
    spoil(model_dir, "flow.pt", "encoder.embed.out.0.weight", lambda weight: weight * 1e6)


def overflow_vocoder(model_dir: Path) -> None:
    spoil(model_dir, "hift.pt", "ups.0.parametrizations.weight.original0", lambda weight: weight * 1e6)


def widen_last_layer(model_dir: Path) -> None:
    """The phases, in radians: numbers above a thousand keep no fraction of a cycle in 16 bit."""

    def change(weight: torch.Tensor) -> torch.Tensor:
        weight[len(weight) // 2 :] *= 3e3
        return weight

    spoil(model_dir, "hift.pt", "conv_post.parametrizations.weight.original0", change)


@pytest.fixture
def model_dir(tiny_model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


@pytest.fixture
def float16_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` as on a GPU without bfloat16."""
    monkeypatch.setattr(step_runners, "_best_dtype", lambda device: torch.float16)
    monkeypatch.setattr(token2wav, "resolve_dtype", lambda name, device: torch.float16)


@given(st.integers(-30, 60), st.integers(1, 50))
def test_the_ratio_is_that_of_the_energies(ratio: int, size: int) -> None:
    exact = torch.ones(size)
    error = 10 ** (-ratio / 20)
    assert ratio_db(exact, exact + error) == pytest.approx(ratio, abs=0.01)


def test_the_largest_product_is_named() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    with torch.no_grad(), Ranges(network.named_parameters()) as ranges:
        for layer, scale in zip(network, (1.0, 1e4), strict=True):
            assert isinstance(layer, torch.nn.Linear)
            layer.weight.copy_(torch.eye(2) * scale)
            layer.bias.zero_()
        network(torch.ones(1, 2))
    assert (ranges.largest, ranges.place) == (1e4, "1.weight")


@pytest.mark.usefixtures("float16_by_itself")
def test_a_healthy_language_model_keeps_16_bit(tiny_model_dir: Path) -> None:
    config = RuntimeConfig(model_dir=str(tiny_model_dir), device="cpu")
    assert language_model.within_bounds(config, read_config(tiny_model_dir).language_model) == config


@pytest.mark.usefixtures("float16_by_itself")
def test_a_language_model_that_overflows_is_served_in_float32(model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    overflow_language_model(model_dir)
    config = RuntimeConfig(model_dir=str(model_dir), device="cpu", max_session_tokens=64, max_sessions=1)
    chosen = language_model.within_bounds(config, read_config(model_dir).language_model)
    assert chosen.dtype == "float32"
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "the language model in float16" in record.message and "layers.0.down_weight" in record.message
    assert "so it runs in float32" in record.message
    engine = TorchEngine.from_config(config)
    try:
        assert isinstance(engine._runner, EagerRunner) and engine._runner.model.dtype == torch.float32
    finally:
        engine.close()
    said_so = replace(config, dtype="float16")
    assert language_model.within_bounds(said_so, read_config(model_dir).language_model) is said_so, "what was asked for is served"


@pytest.mark.usefixtures("float16_by_itself")
@pytest.mark.parametrize(
    ("spoiled", "dtypes"),
    [
        ((), ("auto", "auto")),
        ((overflow_flow,), ("float32", "auto")),
        ((overflow_vocoder,), ("auto", "float32")),
        ((widen_last_layer,), ("auto", "float32")),
    ],
    ids=["healthy", "flow", "vocoder", "last layer"],
)
def test_flow_and_vocoder_are_chosen_one_by_one(
    spoiled: tuple[Callable[[Path], None], ...], dtypes: tuple[str, str], model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token2wav, "_TOKENS", 4)
    for damage in spoiled:
        damage(model_dir)
    config = RuntimeConfig(model_dir=str(model_dir), device="cpu")
    chosen = token2wav.within_bounds(config, read_config(model_dir))
    assert tuple(of_stage.dtype for of_stage in chosen) == dtypes


@pytest.mark.parametrize("directory", ["tiny_model_dir", "tiny_cosyvoice3_dir"])
def test_what_is_stored_between_hops_counts(directory: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their 16-bit state is stored in 8 bits."""
    monkeypatch.setattr(token2wav, "_TOKENS", 4)
    path: Path = request.getfixturevalue(directory)
    config, checkpoint = RuntimeConfig(model_dir=str(path), device="cpu"), read_config(path)
    found = {}
    for largest in (state_rows.LARGEST, 1):
        monkeypatch.setattr(state_rows, "LARGEST", largest)
        found[largest] = token2wav._measure_flow(config, checkpoint, torch.float16, *token2wav.something_to_say(checkpoint))[1]
    assert found[127].is_enough and not found[1].is_enough


def test_on_a_cpu_nothing_is_measured(model_dir: Path) -> None:
    config = RuntimeConfig(model_dir=str(model_dir), device="cpu")
    checkpoint = read_config(model_dir)
    for name in ("llm.pt", "flow.pt", "hift.pt"):
        (model_dir / name).unlink()
    assert language_model.within_bounds(config, checkpoint.language_model) is config
    assert token2wav.within_bounds(config, checkpoint) == (config, config)


def test_the_doctor_tells_which_stage_suffers(model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    widen_last_layer(model_dir)
    assert doctor.main([str(model_dir), "--device", "cpu", "--text", "Hi.", "--output", str(tmp_path / "said.wav")]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    for words in (
        "llm.pt: all",
        "flow.pt: all",
        "hift.pt: all",
        "speech_tokenizer_v2.onnx: feats, feats_length -> indices",
        "checksums: no file is of FunAudioLLM/CosyVoice2-0.5B",
    ):
        assert words in shown
    (advice,) = [index for index, line in enumerate(lines) if line.startswith("  ->")]
    assert "the vocoder in float32" in lines[advice] and "conv_post" in lines[advice - 1]
    assert sum("signal-to-error" in line for line in lines) == 3 and lines[-1].endswith("can be served")
    assert (tmp_path / "said.wav").stat().st_size > 1000


@pytest.mark.parametrize("name", ["llm.pt", "flow.pt", "hift.pt"])
def test_the_doctor_names_a_weight_that_is_not_finite(name: str, model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = next(iter(load_state_dict(model_dir / name)))
    spoil(model_dir, name, key, lambda weight: torch.full_like(weight, math.nan))
    assert doctor.main([str(model_dir)]) == 1
    error = capsys.readouterr().err
    assert f"error: {name}: key" in error and "NaN or infinity" in error
