"""The flow stage against the reference's whole-flow outputs: plain and incremental, streaming and offline."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from bistream.config import RuntimeConfig
from bistream.token2mel.batching import Span
from bistream.token2mel.stage import FlowHop, FlowStage
from bistream.types import VoicePrompt
from tests.parity import golden

MEL_TOLERANCE = 2e-4
_CASE = re.compile(r"mel_(?P<prompt>noprompt_?)?(?P<size>all|prefix\d+|\d+)_streaming_(?P<streaming>[01])_finalize_(?P<finalize>[01])")
CASES = sorted(name for name in golden.read_json("index.json")["files"]["flow_inference.safetensors"] if name.startswith("mel_"))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    torch.save(golden.tensors("flow_weights"), path / "flow.pt")
    return path


def _stage(model_dir: Path, incremental: bool = True, final_mode: str = "streaming") -> FlowStage:
    config = RuntimeConfig(model_dir=str(model_dir), device="cpu", final_mode=final_mode, flow_state_mb=256)
    return FlowStage(config, golden.checkpoint_config(), incremental=incremental)


@pytest.fixture(scope="module", params=[True, False], ids=["incremental", "plain"])
def stage(request: pytest.FixtureRequest, model_dir: Path) -> FlowStage:
    return _stage(model_dir, incremental=request.param)


def _prompt(with_prompt: bool = True) -> VoicePrompt:
    data = golden.tensors("flow_inference")
    tokens, feat = data["prompt_token"][0].numpy(), data["prompt_feat"][0].numpy()
    if not with_prompt:
        tokens, feat = tokens[:0], feat[:0]
    return VoicePrompt("", tokens.astype(np.int32), feat, data["embedding"][0].numpy())


def _case(name: str) -> tuple[VoicePrompt, list[int], bool, bool, torch.Tensor]:
    match = _CASE.fullmatch(name)
    assert match, name
    data = golden.tensors("flow_inference")
    tokens = data["token"][0].tolist()
    if match["size"] != "all":
        tokens = tokens[: int(re.sub(r"\D", "", match["size"]))]
    return _prompt(match["prompt"] is None), tokens, match["streaming"] == "1", match["finalize"] == "1", data[name][0]


@pytest.mark.parametrize("name", [name for name in CASES if "streaming_1" in name])
def test_streaming_in_one_hop(stage: FlowStage, name: str) -> None:
    prompt, tokens, _, finalize, expected = _case(name)
    state = stage.open(prompt)
    mel = stage.hop([FlowHop(state, tokens, finalize)])[0]
    torch.testing.assert_close(mel, expected, rtol=0, atol=MEL_TOLERANCE)
    state.close()
    stage.check_integrity()


@pytest.mark.parametrize("name", [name for name in CASES if "streaming_0_finalize_1" in name])
def test_offline(stage: FlowStage, name: str) -> None:
    prompt, tokens, _, _, expected = _case(name)
    torch.testing.assert_close(stage.synthesize(tokens, prompt), expected, rtol=0, atol=MEL_TOLERANCE)


def test_full_attention_with_lookahead(stage: FlowStage) -> None:
    """``streaming_0_finalize_0``: a mode of the reference that no caller of the stage needs, so the test calls the runner."""
    lookahead = golden.checkpoint_config().flow.pre_lookahead_len
    for name in CASES:
        if "streaming_0_finalize_0" in name:
            prompt, tokens, _, _, expected = _case(name)
            whole = prompt.speech_tokens.tolist() + tokens
            mel = stage.runner.compute([Span(whole, 0, len(whole) - lookahead, prompt, streaming=False)])[0]
            assert isinstance(mel, torch.Tensor)
            torch.testing.assert_close(mel[:, -expected.shape[1] :], expected, rtol=0, atol=MEL_TOLERANCE)


def test_every_prefix_in_consecutive_hops(stage: FlowStage) -> None:
    """The frames of a stream are those of the reference's call for each prefix, incomplete chunks included."""
    cases = [(_case(name)[1], _case(name)[4]) for name in CASES if re.fullmatch(r"mel_prefix\d+_streaming_1_finalize_0", name)]
    cases.sort(key=lambda case: len(case[0]))
    state, seen, emitted = stage.open(_prompt()), 0, 0
    for tokens, expected in cases:
        mel = stage.hop([FlowHop(state, tokens[seen:], False)])[0]
        torch.testing.assert_close(mel, expected[:, emitted:], rtol=0, atol=MEL_TOLERANCE)
        seen, emitted = len(tokens), expected.shape[1]
    data = golden.tensors("flow_inference")
    rest = data["token"][0].tolist()[seen:]
    mel = stage.hop([FlowHop(state, rest, True)])[0]
    expected = data["mel_all_streaming_1_finalize_1"][0]
    torch.testing.assert_close(mel, expected[:, emitted:], rtol=0, atol=MEL_TOLERANCE)
    state.close()
    stage.check_integrity()


def test_reference_final_hop(model_dir: Path) -> None:
    """``final_mode=reference``: the last hop recomputes everything with full attention."""
    stage = _stage(model_dir, final_mode="reference")
    data = golden.tensors("flow_inference")
    tokens = data["token"][0].tolist()
    state = stage.open(_prompt())
    sent = len(tokens) // 2
    first = stage.hop([FlowHop(state, tokens[:sent], False)])[0]
    assert isinstance(first, torch.Tensor)
    mel = stage.hop([FlowHop(state, tokens[sent:], True)])[0]
    torch.testing.assert_close(mel, data["mel_all_streaming_0_finalize_1"][0][:, first.shape[1] :], rtol=0, atol=MEL_TOLERANCE)
    state.close()
    stage.check_integrity()


@pytest.mark.parametrize(("dtype", "floor_db"), [("bfloat16", 37), ("float16", 55)])
def test_16_bit_stays_close_to_the_reference(model_dir: Path, dtype: str, floor_db: float) -> None:
    """Signal to error of every other streaming and offline case; floors are 5 dB below the worst of all."""
    config = RuntimeConfig(model_dir=str(model_dir), device="cpu", dtype=dtype, flow_state_mb=256)
    stage = FlowStage(config, golden.checkpoint_config())
    found = {}
    for name in [name for name in CASES if any(_case(name)[2:4])][::2]:
        prompt, tokens, streaming, finalize, expected = _case(name)
        state = stage.open(prompt)
        mel = stage.hop([FlowHop(state, tokens, finalize)])[0] if streaming else stage.synthesize(tokens, prompt)
        state.close()
        assert isinstance(mel, torch.Tensor)
        found[name] = float(10 * torch.log10(expected.square().sum() / (mel - expected).square().sum()))
    assert min(found.values()) > floor_db, found
