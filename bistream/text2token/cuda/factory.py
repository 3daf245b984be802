"""Makes the CUDA runner of a model directory. Called by ``TorchEngine.from_config`` when a GPU computes in bfloat16."""

from __future__ import annotations

import logging
import time

import torch

from bistream.config import LanguageModelConfig, RuntimeConfig
from bistream.device import is_hopper
from bistream.text2token.cuda.cache import BLOCK_SIZE
from bistream.text2token.cuda.graph_runner import CudaRunner
from bistream.text2token.cuda.packing import pack_weights, unsupported
from bistream.text2token.engine_settings import settings_of
from bistream.text2token.weights import load_weights

logger = logging.getLogger(__name__)


def make_cuda_runner(config: RuntimeConfig, sizes: LanguageModelConfig, device: torch.device) -> CudaRunner | None:
    """``None`` when this GPU or these sizes are not the kernels' (plain PyTorch serves then). Raises as ``load_weights`` does."""
    reasons = unsupported(sizes)
    if not is_hopper(device):
        reasons = ("a GPU of compute capability 9.0", *reasons)
    if reasons:
        logger.warning("the language model runs without its fast kernels: they need %s", "; ".join(reasons))
        return None
    began = time.monotonic()
    settings = settings_of(config, sizes, BLOCK_SIZE)
    weights = pack_weights(load_weights(config.model_dir, sizes, torch.device("cpu"), torch.float32), sizes, device)
    runner = CudaRunner(sizes, weights, settings, graphs=config.graphs, progress=_log_progress)
    logger.info("the language model is ready after %.1f s", time.monotonic() - began)
    return runner


def _log_progress(done: int, total: int) -> None:
    logger.info("preparing the language model: %d of %d row counts", done, total)
