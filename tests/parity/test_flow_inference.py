"""The flow stage of both CosyVoices against the reference's whole-flow outputs: streaming and offline."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from bistream.checkpoints.config import CheckpointConfig
from bistream.config import RuntimeConfig
from bistream.token2mel import weights as unet_weights
from bistream.token2mel.batching import Span
from bistream.token2mel.dit import weights as dit_weights
from bistream.token2mel.stage import FlowHop, FlowStage
from bistream.types import VoicePrompt
from tests.parity import golden, golden3
from tests.reference_flow import ReferenceFlowStage

MEL_TOLERANCE = 2e-4
_CASE = re.compile(r"mel_(?P<prompt>noprompt_?)?(?P<size>all|prefix\d+|\d+)_streaming_(?P<streaming>[01])_finalize_(?P<finalize>[01])")


@dataclass(frozen=True)
class Reference:
    """Golden data of a family. data: the module that reads them. floors_db: of signal to error in 16 bit, 5 dB below the worst case."""

    data: Any
    checkpoint: CheckpointConfig
    build_network: Callable[..., Any]
    floors_db: dict[str, float]

    @property
    def cases(self) -> list[str]:
        return sorted(name for name in self.data.read_json("index.json")["files"]["flow_inference.safetensors"] if name.startswith("mel_"))

    @property
    def tensors(self) -> Any:
        return self.data.tensors("flow_inference")

    @property
    def tokens(self) -> list[int]:
        found: list[int] = self.tensors["token"][0].tolist()
        return found

    def stage(self, kind: type[FlowStage] = FlowStage, dtype: str = "float32") -> FlowStage:
        config = RuntimeConfig(device="cpu", flow_state_mb=256, dtype=dtype)
        weights, device = self.data.tensors("flow_weights"), torch.device("cpu")
        network = self.build_network(weights, self.checkpoint.flow, device, getattr(torch, dtype))
        return kind(config, self.checkpoint, network=network)

    def prompt(self, with_prompt: bool = True) -> VoicePrompt:
        tokens, feat = self.tensors["prompt_token"][0].numpy(), self.tensors["prompt_feat"][0].numpy()
        if not with_prompt:
            tokens, feat = tokens[:0], feat[:0]
        return VoicePrompt("", tokens.astype(np.int32), feat, self.tensors["embedding"][0].numpy())

    def case(self, name: str) -> tuple[VoicePrompt, list[int], bool, bool, torch.Tensor]:
        """Prompt, tokens, whether it streams, whether it is final, the reference's mel."""
        match = _CASE.fullmatch(name)
        assert match, name
        count = None if match["size"] == "all" else int(re.sub(r"\D", "", match["size"]))
        prompt = self.prompt(match["prompt"] is None)
        return prompt, self.tokens[:count], match["streaming"] == "1", match["finalize"] == "1", self.tensors[name][0]


REFERENCES = {
    "cosyvoice2": Reference(golden, golden.checkpoint_config(), unet_weights.build_network, {"bfloat16": 37, "float16": 55}),
    "cosyvoice3": Reference(
        golden3, CheckpointConfig(flow=golden3.flow_config()), dit_weights.build_network, {"bfloat16": 43, "float16": 61}
    ),
}
of_both_families = pytest.mark.parametrize("family", REFERENCES)


def cases(pattern: str) -> list[tuple[str, str]]:
    return [(family, name) for family, reference in REFERENCES.items() for name in reference.cases if pattern in name]


@cache
def stage_of(family: str) -> FlowStage:
    return REFERENCES[family].stage()


def assert_close(found: object, expected: torch.Tensor) -> None:
    assert isinstance(found, torch.Tensor), found
    torch.testing.assert_close(found, expected, rtol=0, atol=MEL_TOLERANCE)


@cache
def streamed(family: str, name: str) -> object:
    """The mel of a streaming case."""
    prompt, tokens, _, finalize, _ = REFERENCES[family].case(name)
    return in_one_hop(stage_of(family), prompt, tokens, finalize)


def in_one_hop(stage: FlowStage, prompt: VoicePrompt, tokens: list[int], finalize: bool) -> object:
    state = stage.open(prompt)
    mel = stage.hop([FlowHop(state, tokens, finalize)])[0]
    state.close()
    stage.check_integrity()
    return mel


@pytest.mark.parametrize(("family", "name"), cases("streaming_1"))
def test_streaming_in_one_hop(family: str, name: str) -> None:
    assert_close(streamed(family, name), REFERENCES[family].tensors[name][0])


@pytest.mark.parametrize(("family", "name"), cases("streaming_0_finalize_1"))
def test_offline(family: str, name: str) -> None:
    prompt, tokens, _, _, expected = REFERENCES[family].case(name)
    assert_close(stage_of(family).synthesize(tokens, prompt), expected)


@pytest.mark.parametrize(("family", "name"), cases("streaming_0_finalize_0"))
def test_full_attention_with_lookahead(family: str, name: str) -> None:
    """A mode of the reference that no caller of the stage needs, so the test calls the runner."""
    stage, (prompt, tokens, _, _, expected) = stage_of(family), REFERENCES[family].case(name)
    whole = prompt.speech_tokens.tolist() + tokens
    mel = stage.runner.compute([Span(whole, 0, len(whole) - stage.config.pre_lookahead_len, prompt, streaming=False)])[0]
    assert isinstance(mel, torch.Tensor)
    assert_close(mel[:, -expected.shape[1] :], expected)


@of_both_families
def test_every_prefix_in_consecutive_hops(family: str) -> None:
    """The frames of a stream are those of the reference's call for each prefix, incomplete chunks included."""
    reference, stage = REFERENCES[family], stage_of(family)
    names = [name for name in reference.cases if re.fullmatch(r"mel_prefix\d+_streaming_1_finalize_0", name)]
    prefixes = sorted((len(reference.case(name)[1]), name) for name in names)
    assert len(prefixes) > 1
    state, seen, emitted = stage.open(reference.prompt()), 0, 0
    for count, name in prefixes:
        expected = reference.tensors[name][0]
        assert_close(stage.hop([FlowHop(state, reference.tokens[seen:count], False)])[0], expected[:, emitted:])
        seen, emitted = count, expected.shape[1]
    mel = stage.hop([FlowHop(state, reference.tokens[seen:], True)])[0]
    assert_close(mel, reference.tensors["mel_all_streaming_1_finalize_1"][0][:, emitted:])
    state.close()
    stage.check_integrity()


@of_both_families
def test_prefix_invariance(family: str) -> None:
    """Frames of complete chunks, counted from the start of the prompt, equal those of the whole utterance; others do not."""
    reference = REFERENCES[family]
    whole = reference.tensors["mel_all_streaming_1_finalize_1"][0]
    for size, facts in reference.data.read_json("flow_info.json")["prefix_invariance"].items():
        mel, complete = streamed(family, f"mel_prefix{size}_streaming_1_finalize_0"), facts["frames_in_complete_chunks"]
        assert isinstance(mel, torch.Tensor) and mel.shape[1] == facts["frames"]
        assert_close(mel[:, :complete], whole[:, :complete])
        if facts["diff_partial"] is not None:
            difference = (mel - whole[:, : mel.shape[1]])[:, complete:].abs().max().item()
            assert difference == pytest.approx(facts["diff_partial"], abs=2 * MEL_TOLERANCE)


@of_both_families
def test_reference_final_hop(family: str) -> None:
    """Which recomputes everything with full attention."""
    reference = REFERENCES[family]
    stage, tokens = reference.stage(ReferenceFlowStage), reference.tokens
    state, sent = stage.open(reference.prompt()), len(tokens) // 2
    first = stage.hop([FlowHop(state, tokens[:sent], False)])[0]
    assert isinstance(first, torch.Tensor)
    expected = reference.tensors["mel_all_streaming_0_finalize_1"][0][:, first.shape[1] :]
    assert_close(stage.hop([FlowHop(state, tokens[sent:], True)])[0], expected)
    state.close()
    stage.check_integrity()


@of_both_families
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_stays_close_to_the_reference(family: str, dtype: str) -> None:
    """Signal to error of streaming and offline cases."""
    reference, found = REFERENCES[family], {}
    stage = reference.stage(dtype=dtype)
    for name in [name for name in reference.cases if reference.case(name)[3] or "prefix28" in name][::2]:
        prompt, tokens, streaming, finalize, expected = reference.case(name)
        mel = in_one_hop(stage, prompt, tokens, finalize) if streaming else stage.synthesize(tokens, prompt)
        assert isinstance(mel, torch.Tensor)
        found[name] = float(10 * torch.log10(expected.square().sum() / (mel - expected).square().sum()))
    assert found and min(found.values()) > reference.floors_db[dtype], found
