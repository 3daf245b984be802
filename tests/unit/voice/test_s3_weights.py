"""The tokenizer's weights come out of any graph with its structure, whatever the names, and out of no other graph."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bistream.errors import CheckpointError
from bistream.voice.s3_network import S3Network
from bistream.voice.s3_weights import state_dict_from_onnx
from tests.unit.voice.graph_forms import SMALL, hidden_behind, model_of, random_state, renamed, reordered, with_another_structure

STATE = random_state()
Change = Callable[[onnx.ModelProto, random.Random], Any]
FORMS: dict[str, Change] = {
    "names": renamed,
    "order": reordered,
    **{operator: hidden_behind(operator) for operator in ("Identity", "Transpose", "Cast")},
}


def read_back(model: onnx.ModelProto, folder: Path) -> dict[str, Tensor]:
    path = folder / "speech_tokenizer_v2.onnx"
    onnx.save(model, str(path))
    return state_dict_from_onnx(path)


@settings(max_examples=6)
@given(forms=st.lists(st.sampled_from(sorted(FORMS)), unique=True), seed=st.integers(0, 1000))
def test_weights_of_the_same_graph_in_any_form(tmp_path_factory: pytest.TempPathFactory, forms: list[str], seed: int) -> None:
    model, rng = model_of(STATE), random.Random(seed)
    for form in forms:
        FORMS[form](model, rng)
    state = read_back(model, tmp_path_factory.mktemp("graph"))
    assert state.keys() == STATE.keys()
    assert all(torch.equal(state[key], tensor) for key, tensor in STATE.items())


class _Exported(nn.Module):
    """``S3Network.tokens`` as an exporter sees a network: in a module of another name."""

    def __init__(self, network: S3Network) -> None:
        super().__init__()
        self.inner = network

    def forward(self, mels: Tensor, lengths: Tensor) -> Tensor:
        hidden, _ = self.inner.encoder(mels, lengths)
        project = self.inner.quantizer["_codebook"]["project_down"]  # type: ignore[index]
        digits = (project(hidden).tanh() * 0.999).round() + 1.0
        codes: Tensor = (digits * 3.0 ** torch.arange(SMALL.digits)).sum(dim=-1).int()
        return codes


@pytest.mark.parametrize("opset", [14, 17])
def test_weights_of_an_export_by_torch(tmp_path: Path, opset: int) -> None:
    """Opset 14 has no layer norm as a node; both leave the matrices transposed and without names."""
    path = tmp_path / "speech_tokenizer_v2.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is deprecated; the released file was made with it
        torch.onnx.export(
            _Exported(S3Network.from_state_dict(STATE)),
            (torch.randn(2, SMALL.mel_bins, 40), torch.tensor([40, 30])),
            str(path),
            opset_version=opset,
            dynamo=False,
        )
    state = state_dict_from_onnx(path)
    assert state.keys() == STATE.keys()
    assert all(torch.equal(state[key], tensor) for key, tensor in STATE.items())


@settings(max_examples=12)
@given(choice=st.integers(0, 1000), is_twice=st.booleans())
def test_another_structure_is_refused(tmp_path_factory: pytest.TempPathFactory, choice: int, is_twice: bool) -> None:
    model = with_another_structure(model_of(STATE), choice, is_twice)
    with pytest.raises(CheckpointError, match=r"is not built like the released speech tokenizer \(.+\); set speech_tokenizer to onnx"):
        read_back(model, tmp_path_factory.mktemp("graph"))
