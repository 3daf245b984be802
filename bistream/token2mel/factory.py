"""Chooses the tier and the runner of a flow stage: the only module outside ``cuda/`` and ``graphs/`` that imports them.

Runners are imported only where they can run.
"""

from __future__ import annotations

import torch

from bistream.config import FlowConfig, RuntimeConfig
from bistream.gpu.tier import Tier, TierChoice, choose_tier
from bistream.token2mel.batching import Buckets
from bistream.token2mel.flow import FlowNetwork
from bistream.token2mel.pages import FlowPages
from bistream.token2mel.runner import FlowRunner
from bistream.token2mel.sizes import kernels_need


def flow_tier(config: RuntimeConfig, sizes: FlowConfig, device: torch.device, dtype: torch.dtype) -> TierChoice:
    """What ``config.kernels``, the device and the network's sizes give. Raises ``ConfigError`` when what is asked for cannot serve."""
    return choose_tier("flow", config.kernels, device, dtype, kernels_need(sizes))


def make_runner(tier: Tier, config: RuntimeConfig, network: FlowNetwork, pages: FlowPages | None) -> FlowRunner:
    """The runner of ``tier``. pages: None computes every prefix plainly."""
    if pages is not None and tier is Tier.KERNELS:
        from bistream.token2mel.cuda.runner import CudaFlowRunner  # noqa: PLC0415  (imports triton)

        runner = CudaFlowRunner(network, pages, config.left_context_chunks)
        runner.record()
        return runner
    return FlowRunner(network, pages, config.left_context_chunks, None if network.device.type == "cpu" else Buckets())
