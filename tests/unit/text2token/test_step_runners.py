"""The torch engine's choice of device, number format and runner."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
from bistream.errors import ConfigError
from bistream.gpu.tier import Tier
from bistream.text2token.step_runners import device_and_dtype, load_step_runner


@pytest.mark.parametrize("device", ["tpu9", "cuda:99", "meta"])
def test_a_missing_device_is_a_config_error(device: str) -> None:
    with pytest.raises(ConfigError, match="device"):
        device_and_dtype(RuntimeConfig(device=device).device, "auto")


def test_devices_and_types() -> None:
    assert device_and_dtype("cpu", "auto") == (torch.device("cpu"), torch.float32)
    assert device_and_dtype("cpu", "bfloat16") == (torch.device("cpu"), torch.bfloat16)


@pytest.mark.parametrize(("native", "expected"), [(True, torch.bfloat16), (False, torch.float16)])
def test_a_gpu_that_would_emulate_bfloat16_gets_float16(native: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native or including_emulation)
    assert device_and_dtype("cuda:0", "auto") == (torch.device("cuda:0"), expected)
    assert device_and_dtype("cuda:0", "float32") == (torch.device("cuda:0"), torch.float32)


def test_a_cpu_is_not_left_to_token2wav(tiny_model_dir: Path) -> None:
    """It computes on other cores, and a pause would only make every token three times as slow."""
    config = RuntimeConfig(model_dir=str(tiny_model_dir), device="cpu", idle_pause=2.0, max_sessions=2)
    runner = load_step_runner(config, read_config(tiny_model_dir).language_model, Tier.PLAIN)
    assert runner.settings.idle_pause == 0.0
