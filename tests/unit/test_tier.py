"""The choice of a tier from device, dtype, Triton and the sizes that graphs do not serve; a request that cannot be met is an error."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
from bistream.errors import ConfigError
from bistream.gpu import tier
from bistream.gpu.tier import NEWEST_TRITON, OLDEST_TRITON, Tier, choose_tier
from bistream.mel2wav.factory import vocoder_tier
from bistream.token2mel.factory import flow_tier
from scripts.make_checkpoint import FULL, FULL3

ROOT = Path(__file__).resolve().parents[2]
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@dataclass
class Simulated:
    capability: tuple[int, int] = (8, 0)
    triton: str = "3.6.0"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    found = Simulated()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: found.capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Test")
    monkeypatch.setattr(tier, "_triton_version", lambda: found.triton)
    return found


@pytest.mark.parametrize("wish", ["auto", "graphs"])
@pytest.mark.parametrize("found", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_every_gpu_from_8_0_on_runs_graphs(gpu: Simulated, found: tuple[int, int], wish: str) -> None:
    gpu.capability = found
    choice = choose_tier("flow", wish, GPU, torch.float16)
    assert choice.tier is Tier.GRAPHS and choice.reasons == ()


def test_an_older_gpu_runs_plain_pytorch_and_logs_why(gpu: Simulated, caplog: pytest.LogCaptureFixture) -> None:
    gpu.capability = (7, 5)
    with caplog.at_level(logging.INFO):
        assert choose_tier("flow", "auto", GPU, torch.float16).tier is Tier.PLAIN
    assert caplog.messages == ["flow: plain PyTorch on NVIDIA Test (recorded graphs need compute capability 8.0)"]


@pytest.mark.parametrize("version", ["3.4.0", "2.9.0", "3.8.0", "3.60.0", "4.4.0", "", "unknown"])
def test_another_triton_leaves_plain_pytorch(gpu: Simulated, version: str) -> None:
    gpu.triton = version
    choice = choose_tier("flow", "auto", GPU, torch.float16)
    assert choice.tier is Tier.PLAIN
    assert choice.reasons == (f"recorded graphs need Triton 3.5 to 3.7, and {version or 'none'} is installed",)
    with pytest.raises(ConfigError, match="need Triton 3.5 to 3.7"):
        choose_tier("flow", "graphs", GPU, torch.float16)


@pytest.mark.parametrize("minor", range(OLDEST_TRITON[1], NEWEST_TRITON[1] + 1))
def test_a_triton_of_the_range_runs_graphs(gpu: Simulated, minor: int) -> None:
    gpu.triton = f"3.{minor}.1+git1234"
    assert choose_tier("flow", "auto", GPU, torch.float16).tier is Tier.GRAPHS


@pytest.mark.usefixtures("gpu")
def test_float32_and_other_sizes_run_plain_pytorch() -> None:
    choice = choose_tier("vocoder", "auto", GPU, torch.float32, ("80 mel bins",))
    assert choice.tier is Tier.PLAIN
    assert choice.reasons == ("recorded graphs need a 16-bit dtype", "recorded graphs need 80 mel bins")
    with pytest.raises(ConfigError, match="vocoder: recorded graphs need 80 mel bins; set it to auto."):
        choose_tier("vocoder", "graphs", GPU, torch.float16, ("80 mel bins",))


@pytest.mark.usefixtures("gpu")
def test_what_the_released_checkpoints_and_the_shipped_voice_get(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bistream.mel2wav.factory.resolve_device", lambda name: GPU)
    for sizes in (FULL.checkpoint, FULL3.checkpoint):
        assert flow_tier(RuntimeConfig(), sizes.flow, GPU, torch.float16).tier is Tier.GRAPHS
        assert vocoder_tier(RuntimeConfig(), sizes).tier is Tier.GRAPHS
    voice = read_config(ROOT / "assets" / "voice")
    flow = flow_tier(RuntimeConfig(), voice.flow, GPU, torch.float16)
    assert flow.tier is Tier.PLAIN and "recorded graphs need an encoder with sizes that are powers of two" in flow.reasons
    assert vocoder_tier(RuntimeConfig(), voice).tier is Tier.GRAPHS


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("device", [CPU, GPU])
def test_plain_pytorch_on_request_needs_no_reason(device: torch.device) -> None:
    choice = choose_tier("vocoder", "plain", device, torch.float16, ("80 mel bins",))
    assert choice.tier is Tier.PLAIN and choice.reasons == ()


def test_a_cpu_has_no_graphs() -> None:
    assert choose_tier("flow", "auto", CPU, torch.float32).tier is Tier.PLAIN
    with pytest.raises(ConfigError, match="Parameter 'kernels' is 'graphs', but flow: recorded graphs need a CUDA GPU; set it to auto."):
        choose_tier("flow", "graphs", CPU, torch.float32)


def test_the_settings_know_no_other_tier() -> None:
    with pytest.raises(ConfigError, match="Parameter 'kernels' is 'kernels'"):
        RuntimeConfig(kernels="kernels")
