"""Strict loading of ``llm.pt`` and the fused layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bistream.errors import CheckpointError
from bistream.text2token.weights import build_weights, load_weights
from tests.unit.text2token.tiny import CONFIG, random_state

CPU = torch.device("cpu")


def test_fused_tensors_hold_their_parts_in_order() -> None:
    state = random_state(CONFIG)
    weights = build_weights(state, CONFIG, CPU, torch.float32)
    layer, prefix = weights.layers[1], "llm.model.model.layers.1"
    assert torch.equal(layer.qkv_weight[64:96], state[f"{prefix}.self_attn.k_proj.weight"])
    assert torch.equal(layer.qkv_bias[96:], state[f"{prefix}.self_attn.v_proj.bias"])
    assert torch.equal(layer.gate_up_weight[96:], state[f"{prefix}.mlp.up_proj.weight"])
    assert torch.equal(weights.embedding[200:323], state["speech_embedding.weight"])
    assert torch.equal(weights.embedding[323:], state["llm_embedding.weight"])


def test_half_precision_keeps_the_head_in_float32() -> None:
    weights = build_weights(random_state(CONFIG), CONFIG, CPU, torch.bfloat16)
    assert weights.embedding.dtype is weights.layers[0].down_weight.dtype is torch.bfloat16
    assert weights.head_weight.dtype is weights.head_bias.dtype is torch.float32


@pytest.mark.parametrize("key", ["llm_decoder.bias", "llm.model.lm_head.weight", "llm.model.model.layers.1.mlp.up_proj.weight"])
def test_every_mismatch_names_file_key_and_shapes(key: str, tmp_path: Path) -> None:
    for change in ("missing", "shape", "extra"):
        state = random_state(CONFIG)
        tensor = state.pop(key)
        if change == "shape":
            state[key] = torch.cat([tensor, tensor])
        if change == "extra":
            state |= {key: tensor, "epoch.weight": tensor}
        torch.save(state, tmp_path / "llm.pt")
        with pytest.raises(CheckpointError, match=r"llm\.pt") as caught:
            load_weights(tmp_path, CONFIG, CPU, torch.float32)
        assert ("epoch.weight" if change == "extra" else key) in str(caught.value)
        assert str(list(tensor.shape)) in str(caught.value)
