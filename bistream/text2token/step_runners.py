"""Makes the step runner of a torch engine and loads the weights in its format. Called by ``TorchEngine.from_config``.

The only module outside ``graphs/`` that imports it, and only where it can run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from bistream.checkpoints.alignment import Head
from bistream.checkpoints.config import LanguageModelConfig
from bistream.config import RuntimeConfig
from bistream.gpu.device import resolve_device
from bistream.gpu.tier import Tier, TierChoice, choose_tier
from bistream.processes.start_phases import phase
from bistream.text2token.engine_settings import EngineSettings, settings_of
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.sampler import RepetitionAwareSampler
from bistream.text2token.sizes import graphs_need
from bistream.text2token.step_runner import EagerRunner, StepRunner
from bistream.text2token.text_reading import head_of
from bistream.text2token.weights import ModelWeights, load_weights

logger = logging.getLogger(__name__)
BLOCK_SIZES = {Tier.GRAPHS: 64, Tier.PLAIN: 16}  # positions per block of keys and values
Progress = Callable[[int, int], None]  # row counts prepared, total row counts


def device_and_dtype(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """``auto`` is the first GPU in 16 bit, or the CPU in float32. Raises ``ConfigError`` for a device that does not exist.

    16 bit is bfloat16, or float16 on GPUs that would emulate it (compute capability below 8.0; not tested on one).
    """
    chosen = resolve_device(device)
    resolved: torch.dtype = _best_dtype(chosen) if dtype == "auto" else getattr(torch, dtype)
    return chosen, resolved


def _best_dtype(device: torch.device) -> torch.dtype:
    if device.type != "cuda":
        return torch.float32
    with torch.cuda.device(device):
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def language_model_tier(config: RuntimeConfig, sizes: LanguageModelConfig) -> TierChoice:
    """The tier for ``config.kernels``, the device and the network's sizes. Raises ``ConfigError`` if the requested one cannot serve."""
    device, dtype = device_and_dtype(config.device, config.dtype)
    return choose_tier("language model", config.kernels, device, dtype, graphs_need(sizes))


def load_step_runner(config: RuntimeConfig, sizes: LanguageModelConfig, tier: Tier) -> StepRunner:
    """Load ``llm.pt`` for ``tier``. Raises ``ConfigError`` or ``CheckpointError``."""
    device, dtype = device_and_dtype(config.device, config.dtype)
    began = time.monotonic()
    # Packing folds norms into weights. It starts from float32, so that a weight is rounded once, and on the device, which takes less time.
    with phase("language model: weights read"):
        weights = load_weights(config.model_dir, sizes, device, dtype if tier is Tier.PLAIN else torch.float32)
    head = head_of(config, sizes)
    if head is not None:
        logger.info("text_position follows the attention of layer %d, head %d", *head)
    settings = replace(settings_of(config, sizes, BLOCK_SIZES[tier]), knows_texts=head is not None)
    if device.type == "cpu":  # token2wav computes on other cores, which a pause does not help
        settings = replace(settings, idle_pause=0.0)
    runner = make_step_runner(tier, sizes, weights, settings, device, dtype, _log_progress, head)
    logger.info("the language model is ready after %.1f s", time.monotonic() - began)
    return runner


def make_step_runner(
    tier: Tier,
    sizes: LanguageModelConfig,
    weights: ModelWeights,
    settings: EngineSettings,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
    head: Head | None = None,
) -> StepRunner:
    """settings.block_size: ``BLOCK_SIZES[tier]``. head: to be read (``text_reading``).

    weights: on ``device`` and in ``dtype`` for the plain tier; for the others, which pack them, on any device, preferably in float32.
    """
    if tier is Tier.GRAPHS:
        from bistream.text2token.graphs.runner import GraphStepRunner  # noqa: PLC0415  (loads PyTorch's compiler)
        from bistream.text2token.graphs.weights import fold_weights  # noqa: PLC0415

        with phase("language model: weights packed"):
            folded = fold_weights(weights, sizes, device, dtype)
        return GraphStepRunner(sizes, folded, settings, progress=progress, head=head)
    return EagerRunner(Qwen2Model(sizes, weights), settings, RepetitionAwareSampler(), head)


def _log_progress(done: int, total: int) -> None:
    logger.info("preparing the language model: %d of %d row counts", done, total)
