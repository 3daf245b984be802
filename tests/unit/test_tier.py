"""The choice of a tier from device, dtype and the sizes that kernels lack; a request that cannot be met is an error."""

from __future__ import annotations

import logging

import pytest
import torch

from bistream.errors import ConfigError
from bistream.gpu import tier
from bistream.gpu.tier import Tier, choose_tier

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The one entry is the compute capability of the simulated GPU."""
    found = [(9, 0)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: found[0])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Test")
    monkeypatch.setattr(tier, "_triton_version", lambda: "3.6.0")
    return found


def test_a_hopper_gpu_runs_our_kernels(capability: list[tuple[int, int]]) -> None:
    choice = choose_tier("flow", "auto", GPU, torch.float16)
    assert choice.tier is Tier.KERNELS and choice.reasons == ()


@pytest.mark.parametrize(("version", "words"), [("3.7.1", "3.7.1 is installed"), ("", "none is installed"), ("3.60.0", "3.60.0 is")])
@pytest.mark.usefixtures("capability")
def test_a_triton_that_cannot_compile_the_kernels_leaves_graphs(version: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier, "_triton_version", lambda: version)
    choice = choose_tier("flow", "auto", GPU, torch.float16)
    assert choice.tier is Tier.GRAPHS and "need Triton 3.6" in choice.reasons[0] and words in choice.reasons[0]
    with pytest.raises(ConfigError, match="own kernels need Triton 3.6"):
        choose_tier("flow", "kernels", GPU, torch.float16)


@pytest.mark.parametrize("other", [(7, 5), (8, 0), (8, 9), (10, 0), (12, 0)])
def test_every_other_gpu_runs_graphs_and_logs_why(
    capability: list[tuple[int, int]], other: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    capability[0] = other
    with caplog.at_level(logging.INFO):
        choice = choose_tier("flow", "auto", GPU, torch.float16)
    assert choice.tier is Tier.GRAPHS
    assert caplog.messages == ["flow: recorded graphs on NVIDIA Test (own kernels need compute capability 9.0)"]


def test_other_sizes_run_graphs_on_a_hopper_gpu(capability: list[tuple[int, int]]) -> None:
    choice = choose_tier("vocoder", "auto", GPU, torch.float16, ("widths of 64 times a power of two",))
    assert choice.tier is Tier.GRAPHS and choice.reasons == ("own kernels need widths of 64 times a power of two",)


@pytest.mark.parametrize("wish", ["kernels", "graphs"])
def test_a_tier_that_the_device_does_not_support_is_an_error(wish: str) -> None:
    with pytest.raises(ConfigError, match=f"Parameter 'kernels' is '{wish}', but flow: recorded graphs need a CUDA GPU; set it to auto."):
        choose_tier("flow", wish, CPU, torch.float32)


@pytest.mark.parametrize("wish", ["auto", "kernels", "graphs"])
@pytest.mark.parametrize("found", [(8, 0), (9, 0)])
def test_a_stage_whose_graphs_launch_its_kernels_has_one_tier_on_a_gpu(
    capability: list[tuple[int, int]], found: tuple[int, int], wish: str
) -> None:
    capability[0] = found
    choice = choose_tier("language model", wish, GPU, torch.bfloat16, fastest=Tier.GRAPHS)
    assert choice.tier is Tier.GRAPHS and choice.reasons == ()
