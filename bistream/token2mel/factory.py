"""Chooses the tier of a flow stage, its pages and its runner: the only module outside ``cuda/`` and ``graphs/`` that imports them.

Runners are imported only where they can run.
"""

from __future__ import annotations

import torch

from bistream.config import FlowConfig, RuntimeConfig
from bistream.gpu.tier import Tier, TierChoice, choose_tier
from bistream.token2mel.batching import Buckets
from bistream.token2mel.flow import FlowNetwork
from bistream.token2mel.graphs.batch import rows_per_page, scratch_page_count, whole_pages
from bistream.token2mel.pages import FlowPages
from bistream.token2mel.runner import FlowRunner
from bistream.token2mel.sizes import kernels_need


def flow_tier(config: RuntimeConfig, sizes: FlowConfig, device: torch.device, dtype: torch.dtype) -> TierChoice:
    """The tier for ``config.kernels``, the device and the network's sizes. Raises ``ConfigError`` when the requested one is unavailable."""
    return choose_tier("flow", config.kernels, device, dtype, kernels_need(sizes))


def page_rows(tier: Tier, sizes: FlowConfig) -> int | None:
    """``rows_per_page`` of ``FlowPages``; None: the frames of a chunk."""
    return rows_per_page(sizes) if tier is Tier.GRAPHS else None


def make_pages(tier: Tier, sizes: FlowConfig, pages: int, dtype: torch.dtype, device: torch.device) -> FlowPages:
    """pages: how many fit into memory, those that the tier itself needs included."""
    if tier is not Tier.GRAPHS:
        return FlowPages(sizes, pages, dtype, device)
    scratch = scratch_page_count(pages)
    return FlowPages(sizes, max(1, whole_pages(pages) - scratch), dtype, device, rows_per_page(sizes), scratch)


def make_runner(tier: Tier, config: RuntimeConfig, network: FlowNetwork, pages: FlowPages | None) -> FlowRunner:
    """The runner of ``tier``. pages: from ``make_pages``; None recomputes every prefix on the plain network."""
    left = config.left_context_chunks
    if pages is not None and tier is Tier.KERNELS:
        from bistream.token2mel.cuda.runner import CudaFlowRunner  # noqa: PLC0415  (imports triton)

        runner = CudaFlowRunner(network, pages, left)
        runner.record()
        return runner
    if pages is not None and tier is Tier.GRAPHS:
        from bistream.token2mel.graphs.runner import GraphFlowRunner  # noqa: PLC0415  (imports flex_attention)

        graph_runner = GraphFlowRunner(network, pages, left)
        graph_runner.record()
        return graph_runner
    return FlowRunner(network, pages, left, None if network.device.type == "cpu" else Buckets())
