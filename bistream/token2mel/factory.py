"""Chooses the network of a flow stage, its tier, its pages and its runner: the only module that asks which flow a checkpoint has, and
the only one outside ``cuda/`` and ``dit/graphs/`` that imports them, where they can run.

``cuda/`` has the recorded graphs of the U-Net, ``dit/graphs/`` those of the DiT.
"""

from __future__ import annotations

from pathlib import Path

import torch

from bistream.checkpoints.config import DitFlowConfig, FlowConfig
from bistream.config import RuntimeConfig
from bistream.families.registry import YAML_NAMES
from bistream.gpu.fidelity import facts_of
from bistream.gpu.tier import Tier, TierChoice, choose_tier
from bistream.token2mel import pages as unet_pages
from bistream.token2mel import weights as unet_weights
from bistream.token2mel.batching import Buckets
from bistream.token2mel.dit import pages as dit_pages
from bistream.token2mel.dit import weights as dit_weights
from bistream.token2mel.dit.network import DitFlow
from bistream.token2mel.dit.pages import DitPages
from bistream.token2mel.flow import FlowModel, FlowNetwork
from bistream.token2mel.paged_memory import StatePages
from bistream.token2mel.pages import FlowPages
from bistream.token2mel.runner import FlowRunner
from bistream.token2mel.sizes import dit_graphs_need, unet_graphs_need


def load_network(model_dir: str | Path, sizes: FlowConfig, device: torch.device, dtype: torch.dtype) -> FlowModel:
    """The network of a model directory, ready to use. Raises ``CheckpointError`` naming file, key and shapes."""
    if isinstance(sizes, DitFlowConfig):
        return dit_weights.load_network(model_dir, sizes, device, dtype)
    return unet_weights.load_network(model_dir, sizes, device, dtype)


def expected_shapes(sizes: FlowConfig) -> dict[str, tuple[int, ...]]:
    """Every key of ``flow.pt`` and its shape."""
    return dit_weights.expected_shapes(sizes) if isinstance(sizes, DitFlowConfig) else unet_weights.expected_shapes(sizes)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto``: float32 on the CPU, float16 elsewhere (the precision upstream serves the flow in)."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.float16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def flow_tier(config: RuntimeConfig, sizes: FlowConfig, device: torch.device, dtype: torch.dtype) -> TierChoice:
    """The tier for ``config.kernels``, the device and the network's sizes. Raises ``ConfigError`` when the requested one is unavailable."""
    if isinstance(sizes, DitFlowConfig):
        return choose_tier("flow", config.kernels, device, dtype, dit_graphs_need(sizes.dit))
    return choose_tier("flow", config.kernels, device, dtype, unet_graphs_need(sizes))


def flow_page_bytes(sizes: FlowConfig, dtype: torch.dtype) -> int:
    """Bytes of one page of ``make_pages``."""
    return dit_pages.page_bytes(sizes, dtype) if isinstance(sizes, DitFlowConfig) else unet_pages.page_bytes(sizes, dtype)


def make_pages(sizes: FlowConfig, pages: int, dtype: torch.dtype, device: torch.device) -> StatePages:
    """pages: how many fit into memory."""
    return DitPages(sizes, pages, dtype, device) if isinstance(sizes, DitFlowConfig) else FlowPages(sizes, pages, dtype, device)


def make_runner(tier: Tier, config: RuntimeConfig, network: FlowModel, pages: StatePages) -> FlowRunner:
    """The runner of ``tier``. pages: from ``make_pages``."""
    left = config.left_context_chunks
    if tier is Tier.PLAIN:
        return FlowRunner(network, pages, left, None if network.device.type == "cpu" else Buckets())
    if isinstance(network, DitFlow) and isinstance(pages, DitPages):
        from bistream.token2mel.dit.graphs.runner import DitGraphRunner  # noqa: PLC0415

        runner = DitGraphRunner(network, pages, left)
        runner.record()
        return runner
    assert isinstance(network, FlowNetwork) and isinstance(pages, FlowPages)
    from bistream.token2mel.cuda.runner import CudaFlowRunner  # noqa: PLC0415  (imports triton)

    files, steps = (unet_weights.FILE_NAME, *YAML_NAMES), str(network.config.n_timesteps)
    facts = facts_of(config.model_dir, files, network.device, network.dtype, solver_steps=steps)
    unet_runner = CudaFlowRunner(network, pages, left, facts=facts)
    unet_runner.record()
    return unet_runner
