"""What is trained is what is served: random weights exported and loaded by the project compute the same; and all of it speaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from bistream.checkpoints.model_dir import check_model_dir
from bistream.checkpoints.reader import load_state_dict, read_config
from bistream.config import RuntimeConfig
from bistream.local import LocalPipeline, VoiceChoice
from bistream.mel2wav.hift import HiFT
from bistream.mel2wav.weights import load_hift
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.weights import load_weights
from bistream.token2mel.encoder import ConformerLayer
from bistream.token2mel.flow import FlowNetwork
from bistream.token2mel.weights import load_network
from bistream.types import GenerationOptions
from bistream.voice.s3_network import S3Network
from bistream.voice.s3_weights import state_dict_from_onnx
from tests.sounds import speech_like
from training.bpe import write_tokenizer
from training.export import export
from training.flow_task import forget_positions, initialise
from training.language_model_task import LanguageModelNetwork
from training.sizes import SMOKE
from training.speaker_task import SpeakerNetwork

CPU = torch.device("cpu")
CHECKPOINT = SMOKE.checkpoint
HALF = 2e-3  # relative rounding of a float16 weight is 5e-4


@pytest.fixture(scope="module")
def networks() -> dict[str, torch.nn.Module]:
    """Random, with weights that float16 holds exactly."""
    torch.manual_seed(0)
    flow = FlowNetwork(CHECKPOINT.flow)
    initialise(flow)
    speaker = SpeakerNetwork(SMOKE.speaker_width, SMOKE.speaker_layers, CHECKPOINT.flow.spk_embed_dim)
    found = {
        "language_model": LanguageModelNetwork(CHECKPOINT.language_model),
        "flow": flow,
        "vocoder": HiFT(CHECKPOINT.vocoder),
        "tokenizer": S3Network(SMOKE.tokenizer),
        "speaker": speaker,
    }
    for network in found.values():
        network.requires_grad_(False).eval()
        for parameter in network.parameters():
            parameter.copy_(parameter.half().float())
    return found


@pytest.fixture(scope="module")
def model_dir(networks: dict[str, torch.nn.Module], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("voice")
    for name, network in networks.items():
        torch.save({"step": 7, "modules": {"network": network.state_dict()}}, root / f"{name}.pt")
    write_tokenizer(["the river and the house on the hill are quiet"] * 5, root / "bpe", SMOKE.bpe_entries)
    assert export(root, root / "bpe", SMOKE, root / "model") == dict.fromkeys(networks, 7)
    return root / "model"


def test_directory_is_complete_and_small(model_dir: Path) -> None:
    config = read_config(model_dir)
    assert config == replace(CHECKPOINT, language_model=replace(CHECKPOINT.language_model, text_position_head=(1, 0))), "a guided head"
    assert config.language_model.tau_r == 1.0
    check_model_dir(model_dir)
    sizes = {path.name: path.stat().st_size for path in model_dir.iterdir()}
    weights = 2 * sum(tensor.numel() for tensor in load_state_dict(model_dir / "llm.pt").values())
    tied = 2 * CHECKPOINT.language_model.text_vocab_size * CHECKPOINT.language_model.hidden_size
    assert sizes["llm.pt"] < weights - tied + 20_000  # the tied matrix is there once


def test_language_model(networks: dict[str, torch.nn.Module], model_dir: Path) -> None:
    ids = torch.randint(0, 1000, (3, 40))
    served = Qwen2Model(CHECKPOINT.language_model, load_weights(model_dir, CHECKPOINT.language_model, CPU, torch.float32))
    trained = networks["language_model"](ids)[0]
    for row, scores in zip(ids, trained, strict=True):
        assert torch.allclose(served.logits(served.forward_dense(row)), scores, rtol=HALF, atol=0.01)  # rounded with the spelling in it


def test_flow(networks: dict[str, torch.nn.Module], model_dir: Path) -> None:
    served, trained = load_network(model_dir, CHECKPOINT.flow, CPU, torch.float32), networks["flow"]
    for (name, ours), (_, theirs) in zip(trained.state_dict().items(), served.state_dict().items(), strict=True):
        assert torch.equal(ours, theirs), name
    forget_positions(served)  # so that a network in training computes its tables again
    for layer in served.encoder.token_layers:
        assert isinstance(layer, ConformerLayer) and not layer.attention.positions.numel()


def test_vocoder(networks: dict[str, torch.nn.Module], model_dir: Path) -> None:
    served, trained = load_hift(model_dir, CHECKPOINT.vocoder, CPU), networks["vocoder"]
    assert isinstance(trained, HiFT)
    mel, source = torch.randn(1, 80, 12) - 5, 0.1 * torch.randn(1, 12 * 480)
    frames = torch.tensor([12])
    ours, theirs = (network.decode(mel, source, frames) for network in (trained, served))
    assert (ours - theirs).abs().max() < HALF * ours.abs().max() + HALF
    assert torch.allclose(trained.f0(mel), served.f0(mel), rtol=HALF, atol=HALF)


def test_speech_tokenizer(networks: dict[str, torch.nn.Module], model_dir: Path) -> None:
    path, trained = model_dir / "speech_tokenizer_v2.onnx", networks["tokenizer"]
    assert isinstance(trained, S3Network)
    state = state_dict_from_onnx(path)
    for key, value in trained.state_dict().items():
        assert torch.equal(state[key], value), key
    mel = torch.randn(1, 128, 80)
    (codes,) = onnxruntime.InferenceSession(str(path)).run(None, {"feats": mel.numpy(), "feats_length": np.array([80], np.int32)})
    expected, _ = trained.tokens(mel, torch.tensor([80]))
    assert (torch.from_numpy(codes).flatten() == expected.flatten()).float().mean() > 0.9  # a digit on the edge may round otherwise


def test_pipeline_speaks(model_dir: Path) -> None:
    torch.set_num_threads(1)
    config = RuntimeConfig(
        model_dir=str(model_dir), device="cpu", num_threads=1, max_sessions=1, kv_cache_tokens=2048, flow_state_mb=64, left_context_chunks=4
    )
    with LocalPipeline(config) as pipeline:
        chunks = list(pipeline.stream(["the river ", "is quiet"], VoiceChoice(speech_like(), "the house"), GenerationOptions(seed=1)))
    assert sum(len(chunk.waveform) for chunk in chunks) % 960 == 0 and chunks and all(np.isfinite(chunk.waveform).all() for chunk in chunks)
