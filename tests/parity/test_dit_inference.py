"""The flow stage on CosyVoice3's flow against the reference's whole-flow outputs: plain and incremental, streaming and offline."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from bistream.checkpoints.config import CheckpointConfig
from bistream.config import RuntimeConfig
from bistream.token2mel.batching import Span
from bistream.token2mel.dit.weights import build_network
from bistream.token2mel.stage import FlowHop, FlowStage
from bistream.types import VoicePrompt
from tests.parity import golden3

MEL_TOLERANCE = 2e-4
_CASE = re.compile(r"mel_(?P<prompt>noprompt_?)?(?P<size>all|prefix\d+|\d+)_streaming_(?P<streaming>[01])_finalize_(?P<finalize>[01])")
CASES = sorted(name for name in golden3.read_json("index.json")["files"]["flow_inference.safetensors"] if name.startswith("mel_"))


def _stage(incremental: bool = True, final_mode: str = "streaming", dtype: str = "float32") -> FlowStage:
    config = RuntimeConfig(device="cpu", final_mode=final_mode, flow_state_mb=256, dtype=dtype)
    sizes = golden3.flow_config()
    network = build_network(golden3.tensors("flow_weights"), sizes, torch.device("cpu"), getattr(torch, dtype))
    return FlowStage(config, CheckpointConfig(flow=sizes), incremental=incremental, network=network)


@pytest.fixture(scope="module", params=[True, False], ids=["incremental", "plain"])
def stage(request: pytest.FixtureRequest) -> FlowStage:
    return _stage(incremental=request.param)


def _prompt(with_prompt: bool = True) -> VoicePrompt:
    data = golden3.tensors("flow_inference")
    tokens, feat = data["prompt_token"][0].numpy(), data["prompt_feat"][0].numpy()
    if not with_prompt:
        tokens, feat = tokens[:0], feat[:0]
    return VoicePrompt("", tokens.astype(np.int32), feat, data["embedding"][0].numpy())


def _case(name: str) -> tuple[VoicePrompt, list[int], bool, bool, torch.Tensor]:
    match = _CASE.fullmatch(name)
    assert match, name
    data = golden3.tensors("flow_inference")
    tokens = data["token"][0].tolist()
    if match["size"] != "all":
        tokens = tokens[: int(re.sub(r"\D", "", match["size"]))]
    return _prompt(match["prompt"] is None), tokens, match["streaming"] == "1", match["finalize"] == "1", data[name][0]


def assert_close(found: object, expected: torch.Tensor) -> None:
    assert isinstance(found, torch.Tensor), found
    torch.testing.assert_close(found, expected, rtol=0, atol=MEL_TOLERANCE)


@pytest.mark.parametrize("name", [name for name in CASES if "streaming_1" in name])
def test_streaming_in_one_hop(stage: FlowStage, name: str) -> None:
    prompt, tokens, _, finalize, expected = _case(name)
    state = stage.open(prompt)
    assert_close(stage.hop([FlowHop(state, tokens, finalize)])[0], expected)
    state.close()
    stage.check_integrity()


@pytest.mark.parametrize("name", [name for name in CASES if "streaming_0_finalize_1" in name])
def test_offline(stage: FlowStage, name: str) -> None:
    prompt, tokens, _, _, expected = _case(name)
    assert_close(stage.synthesize(tokens, prompt), expected)


@pytest.mark.parametrize("name", [name for name in CASES if "streaming_0_finalize_0" in name])
def test_full_attention_with_lookahead(stage: FlowStage, name: str) -> None:
    """A mode of the reference that no caller of the stage needs, so the test calls the runner."""
    prompt, tokens, _, _, expected = _case(name)
    whole = prompt.speech_tokens.tolist() + tokens
    mel = stage.runner.compute([Span(whole, 0, len(whole) - stage.config.pre_lookahead_len, prompt, streaming=False)])[0]
    assert isinstance(mel, torch.Tensor)
    assert_close(mel[:, -expected.shape[1] :], expected)


def test_every_prefix_in_consecutive_hops(stage: FlowStage) -> None:
    """The frames of a stream are those of the reference's call for each prefix, incomplete chunks included."""
    cases = [(_case(name)[1], _case(name)[4]) for name in CASES if re.fullmatch(r"mel_prefix\d+_streaming_1_finalize_0", name)]
    cases.sort(key=lambda case: len(case[0]))
    assert len(cases) > 1
    state, seen, emitted = stage.open(_prompt()), 0, 0
    for tokens, expected in cases:
        assert_close(stage.hop([FlowHop(state, tokens[seen:], False)])[0], expected[:, emitted:])
        seen, emitted = len(tokens), expected.shape[1]
    data = golden3.tensors("flow_inference")
    mel = stage.hop([FlowHop(state, data["token"][0].tolist()[seen:], True)])[0]
    assert_close(mel, data["mel_all_streaming_1_finalize_1"][0][:, emitted:])
    state.close()
    stage.check_integrity()


def test_prefix_invariance(stage: FlowStage) -> None:
    """Frames of complete chunks, counted from the start of the prompt, equal those of the whole utterance; others do not."""
    whole = golden3.tensors("flow_inference")["mel_all_streaming_1_finalize_1"][0]
    for size, facts in golden3.read_json("flow_info.json")["prefix_invariance"].items():
        prompt, tokens, _, _, _ = _case(f"mel_prefix{size}_streaming_1_finalize_0")
        state = stage.open(prompt)
        mel = stage.hop([FlowHop(state, tokens, False)])[0]
        state.close()
        complete = facts["frames_in_complete_chunks"]
        assert isinstance(mel, torch.Tensor) and mel.shape[1] == facts["frames"]
        assert_close(mel[:, :complete], whole[:, :complete])
        if facts["diff_partial"] is not None:
            difference = (mel - whole[:, : mel.shape[1]])[:, complete:].abs().max().item()
            assert difference == pytest.approx(facts["diff_partial"], abs=2 * MEL_TOLERANCE)


def test_reference_final_hop() -> None:
    """``final_mode=reference``: the last hop recomputes everything with full attention."""
    stage = _stage(final_mode="reference")
    data = golden3.tensors("flow_inference")
    tokens = data["token"][0].tolist()
    state = stage.open(_prompt())
    sent = len(tokens) // 2
    first = stage.hop([FlowHop(state, tokens[:sent], False)])[0]
    assert isinstance(first, torch.Tensor)
    assert_close(stage.hop([FlowHop(state, tokens[sent:], True)])[0], data["mel_all_streaming_0_finalize_1"][0][:, first.shape[1] :])
    state.close()
    stage.check_integrity()


@pytest.mark.parametrize(("dtype", "floor_db"), [("bfloat16", 43), ("float16", 61)])
def test_16_bit_stays_close_to_the_reference(dtype: str, floor_db: float) -> None:
    """Signal to error of streaming and offline cases; floors are 5 dB below the worst of them."""
    stage = _stage(dtype=dtype)
    found = {}
    for name in CASES:
        prompt, tokens, streaming, finalize, expected = _case(name)
        if not finalize and "prefix28" not in name:
            continue
        state = stage.open(prompt)
        mel = stage.hop([FlowHop(state, tokens, finalize)])[0] if streaming else stage.synthesize(tokens, prompt)
        state.close()
        assert isinstance(mel, torch.Tensor)
        found[name] = float(10 * torch.log10(expected.square().sum() / (mel - expected).square().sum()))
    assert min(found.values()) > floor_db, found
