"""Flow and vocoder together against the reference's complete loops, in the modes that reproduce it.

Tolerances of ``tests/golden/README.md``: 1e-2 absolute and at least 55 dB signal-to-error. Every case runs through the
service (one session per case, all at once), so batching and threads are tested too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bistream.config import RuntimeConfig
from bistream.mel2wav.stage import VocoderStage
from bistream.token2mel.stage import FlowStage
from bistream.token2wav.renderer import sizes_of
from bistream.token2wav.service import Token2Wav, Token2WavHop
from bistream.token2wav.speech_stages import SpeechStages
from bistream.types import FloatArray, VoicePrompt
from tests.formats import SAMPLES_PER_TOKEN, VOCODER_OVERLAP_SAMPLES
from tests.parity import golden
from tests.reference_flow import ReferenceFlowStage
from tests.reference_vocoder import ReferenceVocoderStage

CASES: list[dict[str, Any]] = golden.read_json("token2wav.json")["cases"]
AUDIO_NAMES = {"stream": "stream_audio", "triton_exponential": "triton_audio"}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden weights as a model directory."""
    directory = tmp_path_factory.mktemp("model")
    for stage in ("flow", "hift"):
        torch.save(dict(golden.tensors(f"{stage}_weights")), directory / f"{stage}.pt")
    return directory


@pytest.fixture(scope="module")
def token2wav(model_dir: Path) -> Iterator[Token2Wav]:
    config = RuntimeConfig(model_dir=str(model_dir), device="cpu", flow_state_mb=1024, drain_timeout_s=0.0)
    checkpoint = golden.checkpoint_config()
    vocoder = ReferenceVocoderStage(config, checkpoint)
    service = Token2Wav(config, renderer=SpeechStages(ReferenceFlowStage(config, checkpoint), vocoder, sizes_of(checkpoint)))
    yield service
    service.close()


def tensor(case: str, name: str, data: Any = golden) -> Any:
    return data.tensors("token2wav")[f"{case}.{name}"][0].numpy()


def prompt_of(case: str, data: Any = golden) -> VoicePrompt:
    return VoicePrompt("", *(tensor(case, name, data) for name in ("prompt_token", "prompt_feat", "embedding")))


def assert_same_audio(found: FloatArray, expected: FloatArray, least_db: float = 55.0) -> None:
    assert found.shape == expected.shape
    error = found - expected
    signal_to_error_db = 10 * np.log10(np.mean(expected**2) / np.mean(error**2))
    assert np.abs(error).max() <= 1e-2
    assert signal_to_error_db >= least_db


def hops_of(case: dict[str, Any], data: Any = golden) -> list[Token2WavHop]:
    """The calls of the reference as hops that carry new tokens only."""
    token_ids = tensor(case["case"], "token", data).tolist()
    sent, hops = 0, []
    for index, (passed, _, _, finalize) in enumerate(case["calls"]):
        prompt = prompt_of(case["case"], data) if index == 0 else None
        hops.append(Token2WavHop(f"{case['case']}-{case['mode']}", tuple(token_ids[sent:passed]), finalize, prompt))
        sent = passed
    return hops


def test_streams(token2wav: Token2Wav) -> None:
    """Library and Triton schedules; the sessions run side by side."""
    futures = [[token2wav.hop(hop) for hop in hops_of(case)] for case in CASES]
    for case, pending in zip(CASES, futures, strict=True):
        chunks = [future.result(timeout=240) for future in pending]
        assert [len(chunk) for chunk in chunks] == case["chunk_samples"]
        assert_same_audio(np.concatenate(chunks), tensor(case["case"], AUDIO_NAMES[case["mode"]]))


OFFLINE = [(name.split(".", 1)[0], name) for name in sorted(golden.tensors("token2wav")) if ".offline" in name]


@pytest.mark.parametrize(("case", "name"), OFFLINE)
def test_offline(token2wav: Token2Wav, case: str, name: str) -> None:
    suffix = name.removeprefix(f"{case}.offline").removesuffix("_audio")
    speed = float(suffix.removeprefix("_speed")) if suffix else 1.0
    waveform = token2wav.synthesize(tensor(case, "token").tolist(), prompt_of(case), speed=speed).result(timeout=240)
    assert_same_audio(waveform, golden.tensors("token2wav")[name][0].numpy())


def test_crossfade_window_is_the_references(model_dir: Path) -> None:
    config = RuntimeConfig(model_dir=str(model_dir), device="cpu")
    stage = ReferenceVocoderStage(config, golden.checkpoint_config())
    window = torch.cat([stage.fade_in, stage.fade_out]).double()
    assert window.shape == (2 * VOCODER_OVERLAP_SAMPLES,)
    assert (window - golden.tensors("token2wav")["hamming_7680"]).abs().max() < 1e-6


def test_the_default_modes_give_the_same_number_of_samples(model_dir: Path) -> None:
    config = RuntimeConfig(model_dir=str(model_dir), device="cpu", flow_state_mb=1024, drain_timeout_s=0.0)
    checkpoint = golden.checkpoint_config()
    stages = SpeechStages(FlowStage(config, checkpoint), VocoderStage(config, checkpoint), sizes_of(checkpoint))
    service = Token2Wav(config, renderer=stages)
    pending = [service.hop(hop) for hop in hops_of(CASES[0])]
    lengths = [len(future.result(timeout=240)) for future in pending]
    service.close()
    assert lengths == CASES[0]["chunk_samples"]
    assert sum(lengths) == CASES[0]["n_token"] * SAMPLES_PER_TOKEN
