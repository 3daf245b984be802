"""The speaker encoder in PyTorch on a GPU against onnxruntime on the CPU, and the spectral front-ends against numpy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from bistream.gpu.precision import exact_float32
from bistream.voice.build import prompt_mel
from bistream.voice.campplus_network import CampplusConfig, CampplusNetwork, expected_shapes
from bistream.voice.campplus_weights import read_campplus
from bistream.voice.features import fbank_16k, log_mel_16k
from bistream.voice.fixed_sizes import batch_sizes
from bistream.voice.made_with import SPEAKER_ENCODER_FILE
from bistream.voice.onnx_session import OnnxModel
from bistream.voice.speaker_encoder import NUM_INPUTS, OnnxSpeakers, check_same_vectors, cosines
from bistream.voice.torch_features import TorchFeatures
from bistream.voice.torch_speakers import TorchSpeakers
from scripts._campplus_model import campplus_model
from scripts._random_weights import Drawer, speaker_encoder_state
from tests.unit.voice.voices import noise

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

# the GPU host's torch is not the pinned version: ignore its warnings
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CUDA = torch.device("cuda")
SAMPLES = (8000, 16_001, 80_000, 80_000, 48_123, 240_000, 79_000, 81_000, 480_000, 12_345)
ROUNDING = 1e-4  # of the largest value: float32 without TF32, sums in another order through 52 layers


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole network at full size, with random weights."""
    found, config = tmp_path_factory.mktemp("encoder") / SPEAKER_ENCODER_FILE, CampplusConfig()
    state = speaker_encoder_state(Drawer(0), expected_shapes(config))
    onnx.save(campplus_model({key: tensor.numpy() for key, tensor in state.items()}, config), str(found))
    return found


@pytest.fixture(scope="module")
def on_gpu(path: Path) -> TorchSpeakers:
    return TorchSpeakers(CampplusNetwork.from_state_dict(*read_campplus(path)), CUDA)


@pytest.fixture(scope="module")
def on_cpu(path: Path) -> OnnxSpeakers:
    return OnnxSpeakers(OnnxModel(path.parent, path.name, NUM_INPUTS))


def test_all_sizes_are_recorded(on_gpu: TorchSpeakers) -> None:
    calls = on_gpu._network._calls
    assert set(calls) == set(batch_sizes(CUDA)) and all(call.graph is not None for call in calls.values())


def test_embeddings_are_those_of_onnxruntime(on_gpu: TorchSpeakers, on_cpu: OnnxSpeakers) -> None:
    check_same_vectors(on_gpu, on_cpu)
    waveforms = [noise(count) for count in SAMPLES]
    found = on_gpu.vectors([on_gpu.filter_bank(waveform) for waveform in waveforms])
    expected = np.concatenate([on_cpu.vectors([on_cpu.filter_bank(waveform)]) for waveform in waveforms])
    assert (cosines(found, expected) > 0.9999).all()
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING * float(np.abs(expected).max()))


def test_embeddings_are_those_of_each_alone(on_gpu: TorchSpeakers) -> None:
    frames = [on_gpu.filter_bank(noise(count)) for count in SAMPLES]
    alone = np.concatenate([on_gpu.vectors([one]) for one in frames])
    np.testing.assert_allclose(on_gpu.vectors(frames), alone, rtol=0, atol=ROUNDING * float(np.abs(alone).max()))


def test_a_recorded_call_is_the_unrecorded_one(path: Path, on_gpu: TorchSpeakers) -> None:
    network = CampplusNetwork.from_state_dict(*read_campplus(path)).to(CUDA)
    features = torch.zeros(1, 600, 80, device=CUDA)
    features[0, :498] = torch.from_numpy(fbank_16k(noise(80_000))).to(CUDA)
    with exact_float32():  # as the graph was recorded; cuDNN's default is TF32
        plain = network(features, torch.tensor([498], device=CUDA)).cpu().numpy()
    recorded = on_gpu.vectors([features[0, :498]])
    np.testing.assert_allclose(recorded, plain, rtol=0, atol=ROUNDING * float(np.abs(plain).max()))


def test_nothing_waits_for_the_device(path: Path) -> None:
    """Torch reports every operation that does."""
    network = CampplusNetwork.from_state_dict(*read_campplus(path)).to(CUDA)
    features, lengths = torch.randn(2, 400, 80, device=CUDA), torch.tensor([400, 131], device=CUDA)
    network(features, lengths)
    torch.cuda.set_sync_debug_mode("error")
    try:
        vectors = network(features, lengths)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert vectors.shape == (2, 192) and vectors.isfinite().all()


@pytest.mark.parametrize("samples", [8000, 16_001, 80_000, 480_000])
def test_features_are_those_of_numpy(samples: int) -> None:
    features, waveform = TorchFeatures(CUDA), noise(samples)
    loaded = features.load(waveform)
    np.testing.assert_allclose(features.log_mel_16k(loaded).cpu(), log_mel_16k(waveform), rtol=0, atol=1e-5)
    np.testing.assert_allclose(features.fbank_16k(loaded).cpu(), fbank_16k(waveform), rtol=0, atol=1e-5)
    np.testing.assert_allclose(features.prompt_mel(loaded, 8000.0).cpu(), prompt_mel(waveform, 8000.0), rtol=0, atol=1e-3)
