"""Chooses the runner of a flow stage. The only module outside this folder's own that imports its kernels, and only where they can run."""

from __future__ import annotations

import logging

import torch

from bistream.config import RuntimeConfig
from bistream.device import is_hopper
from bistream.token2mel.batching import Buckets
from bistream.token2mel.flow import FlowNetwork
from bistream.token2mel.pages import FlowPages
from bistream.token2mel.runner import FlowRunner

_log = logging.getLogger(__name__)


def make_runner(config: RuntimeConfig, network: FlowNetwork, pages: FlowPages | None) -> FlowRunner:
    """Recorded graphs of kernels on a Hopper GPU in 16 bit, unless ``config.graphs`` is off; the plain network elsewhere."""
    device = network.device
    if config.graphs and pages is not None and network.dtype != torch.float32 and is_hopper(device):
        from bistream.token2mel.cuda.runner import CudaFlowRunner, supports  # noqa: PLC0415  (imports triton)

        if supports(network.config):
            runner = CudaFlowRunner(network, pages, config.left_context_chunks)
            runner.record()
            return runner
        _log.warning("the flow's sizes have no kernels; it runs without graphs")
    return FlowRunner(network, pages, config.left_context_chunks, None if device.type == "cpu" else Buckets())
