"""Chooses the runner of a flow stage: the only module outside ``cuda/`` and ``graphs/`` that imports them, and only where they can run."""

from __future__ import annotations

from bistream.config import RuntimeConfig
from bistream.gpu.tier import Tier, choose_tier
from bistream.token2mel.batching import Buckets
from bistream.token2mel.flow import FlowNetwork
from bistream.token2mel.pages import FlowPages
from bistream.token2mel.runner import FlowRunner
from bistream.token2mel.sizes import kernels_need


def make_runner(config: RuntimeConfig, network: FlowNetwork, pages: FlowPages | None) -> FlowRunner:
    """The runner of the tier that ``config.kernels``, the device and the network give. pages: None computes every prefix plainly."""
    device = network.device
    if pages is not None:
        choice = choose_tier("flow", config.kernels, device, network.dtype, kernels_need(network.config))
        if choice.tier is Tier.KERNELS:
            from bistream.token2mel.cuda.runner import CudaFlowRunner  # noqa: PLC0415  (imports triton)

            runner = CudaFlowRunner(network, pages, config.left_context_chunks)
            runner.record()
            return runner
    return FlowRunner(network, pages, config.left_context_chunks, None if device.type == "cpu" else Buckets())
