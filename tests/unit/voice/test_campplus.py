"""CAM++ in PyTorch: equal to the module that is exported, whatever shares the batch; its weights come out of any graph with its structure,
and out of no other."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bistream.errors import CheckpointError
from bistream.types import FloatArray
from bistream.voice.campplus_network import FRAME_UNIT, CampplusConfig, CampplusNetwork, expected_shapes
from bistream.voice.campplus_weights import read_campplus
from bistream.voice.features import KALDI_MEL_BINS
from bistream.voice.made_with import SPEAKER_ENCODER_FILE
from scripts._campplus_model import campplus_model
from scripts._random_weights import Drawer, speaker_encoder_state
from tests.unit.voice.campplus_module import CampplusModule
from tests.unit.voice.graph_forms import hidden_behind, renamed, reordered, with_another_structure

SMALL = CampplusConfig(channels=2, width=8, growth=4, bottleneck=8, context=4, blocks=((2, 1), (3, 2), (1, 3)), size=6)
DEEP = CampplusConfig(channels=4, width=16, growth=4, bottleneck=16, context=8, size=24)
RELEASED_WEIGHTS = 617  # initializers of the released file
Change = Callable[[onnx.ModelProto, random.Random], Any]
FORMS: dict[str, Change] = {"names": renamed, "order": reordered, "Identity": hidden_behind("Identity"), "Cast": hidden_behind("Cast")}


def random_state(config: CampplusConfig = SMALL) -> dict[str, Tensor]:
    return speaker_encoder_state(Drawer(0), expected_shapes(config))


def model_of(config: CampplusConfig = SMALL) -> onnx.ModelProto:
    return campplus_model({key: tensor.numpy() for key, tensor in random_state(config).items()}, config)


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / SPEAKER_ENCODER_FILE
    onnx.save(model, str(path))
    return path


def frames(*counts: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(count, KALDI_MEL_BINS, generator=generator) for count in counts]


def together(network: CampplusNetwork, recordings: Sequence[Tensor], more: int = 0) -> FloatArray:
    """more: units of nothing at the end."""
    longest = max(map(len, recordings))
    batch = torch.zeros(len(recordings), (-(-longest // FRAME_UNIT) + more) * FRAME_UNIT, KALDI_MEL_BINS)
    for row, recording in zip(batch, recordings, strict=True):
        row[: len(recording)] = recording
    vectors: FloatArray = network(batch, torch.tensor([len(recording) for recording in recordings])).numpy()
    return vectors


def by_onnxruntime(path: Path, recordings: Sequence[Tensor]) -> FloatArray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {session.get_inputs()[0].name: one[None].numpy()})[0] for one in recordings])


@pytest.mark.parametrize(
    ("config", "opset"), [(SMALL, 11), (SMALL, 17), pytest.param(DEEP, 11, marks=pytest.mark.slow)], ids=["11", "17", "whole depth"]
)
def test_an_export_of_the_module(tmp_path: Path, config: CampplusConfig, opset: int) -> None:
    """Its results, in PyTorch and in onnxruntime; at its whole depth with as many weights as the released file."""
    module, path = CampplusModule(config), tmp_path / SPEAKER_ENCODER_FILE
    module.export(path, opset)
    assert config is SMALL or len(onnx.load(str(path)).graph.initializer) == RELEASED_WEIGHTS
    network = CampplusNetwork.from_state_dict(*read_campplus(path))
    assert network.config == config
    recordings = frames(73, 201, 400, 498)  # of which two end within a segment
    found = together(network, recordings)
    with torch.no_grad():
        expected = torch.cat([module(recording[None]) for recording in recordings]).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))
    np.testing.assert_allclose(by_onnxruntime(path, recordings), expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


@settings(max_examples=10)
@given(counts=st.lists(st.integers(3, 450), min_size=1, max_size=4), more=st.integers(0, 2))
def test_each_recording_gets_what_it_gets_alone(counts: list[int], more: int) -> None:
    network = CampplusNetwork.from_state_dict(random_state(), {1: 1, 2: 2, 3: 3})
    recordings = frames(*counts)
    alone = np.concatenate([together(network, [recording]) for recording in recordings])
    np.testing.assert_allclose(together(network, recordings, more), alone, rtol=0, atol=1e-5 * float(np.abs(alone).max()))


@settings(max_examples=3)
@given(forms=st.lists(st.sampled_from(sorted(FORMS)), unique=True), seed=st.integers(0, 1000))
def test_weights_of_the_same_graph_in_any_form(tmp_path_factory: pytest.TempPathFactory, forms: list[str], seed: int) -> None:
    model, rng = model_of(), random.Random(seed)
    for form in forms:
        FORMS[form](model, rng)
    state, dilations = read_campplus(saved(model, tmp_path_factory.mktemp("graph")))
    assert dilations == {1: 1, 2: 2, 3: 3}
    expected = random_state()
    assert state.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(state[key], tensor, rtol=1e-6, atol=1e-7)  # scales went through a variance


@settings(max_examples=12)
@given(choice=st.integers(0, 1000), is_twice=st.booleans())
def test_another_structure_is_refused(tmp_path_factory: pytest.TempPathFactory, choice: int, is_twice: bool) -> None:
    model = with_another_structure(model_of(), choice, is_twice)
    with pytest.raises(CheckpointError, match=r"is not built like the released speaker encoder \(.+\); set speaker_encoder to onnx"):
        read_campplus(saved(model, tmp_path_factory.mktemp("graph")))


def test_a_shape_that_does_not_fit_is_named(tmp_path: Path) -> None:
    model = model_of()
    for item in model.graph.initializer:
        if item.name == "xvector.block1.tdnnd2.linear1.weight":
            item.CopyFrom(onnx.numpy_helper.from_array(np.zeros((9, 12, 1), np.float32), item.name))
    with pytest.raises(CheckpointError, match=r"xvector.block1.tdnnd2.linear1.weight has shape \[9, 12, 1\], not \[8, 12, 1\]"):
        read_campplus(saved(model, tmp_path))
