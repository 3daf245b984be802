"""Does this checkpoint's language model bear 16 bit? Asked once at start, before the weights are packed for a tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor

from bistream.checkpoints.config import LanguageModelConfig
from bistream.config import RuntimeConfig
from bistream.families.registry import TEXT_CONFIGS, YAML_NAMES
from bistream.gpu.fidelity import Fidelity, Ranges, facts_of, measured_once, ratio_db
from bistream.gpu.precision import exact_float32
from bistream.processes.start_phases import phase
from bistream.store.fingerprint import Fingerprint
from bistream.text2token.engine import TokenSpace
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.step_runners import device_and_dtype
from bistream.text2token.weights import FILE_NAME, LayerWeights, ModelWeights, load_weights

STAGE = "the language model"
_FILES = (FILE_NAME, *YAML_NAMES, *TEXT_CONFIGS)
_TEXT_IDS, _SPEECH_IDS = 24, 72


def within_bounds(config: RuntimeConfig, sizes: LanguageModelConfig) -> RuntimeConfig:
    """The same, or with float32 where ``auto`` would choose a dtype in which this checkpoint's scores are lost; the log says so.

    Raises ``CheckpointError`` and ``ConfigError``.
    """
    device, dtype = device_and_dtype(config.device, config.dtype)
    if config.dtype != "auto" or dtype == torch.float32:
        return config
    with phase("does the language model bear 16 bit"):
        facts = facts_of(config.model_dir, _FILES, device, dtype)
        is_enough = bears(facts, lambda: _measure_file(config, sizes, device, dtype))
    return config if is_enough else replace(config, dtype="float32", kernels="plain")


def bears(facts: Fingerprint, measured: Callable[[], Fidelity]) -> bool:
    """Whether the scores are kept. Says it in the log; measures it where that is not known yet."""
    (fidelity,) = measured_once("language-model", facts, lambda: [measured()])
    fidelity.report()
    return fidelity.is_enough


def _measure_file(config: RuntimeConfig, sizes: LanguageModelConfig, device: torch.device, dtype: torch.dtype) -> Fidelity:
    fidelity = measure(sizes, load_weights(config.model_dir, sizes, device, torch.float32), dtype, some_ids(sizes))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return fidelity


@torch.inference_mode()
def measure(sizes: LanguageModelConfig, weights: ModelWeights, dtype: torch.dtype, ids: Sequence[int]) -> Fidelity:
    """weights: float32. ids: a whole sequence of ``TokenSpace``. Compares the scores at all its positions."""
    exact = Qwen2Model(sizes, weights)
    sequence = torch.tensor(list(ids), device=exact.device)
    with exact_float32():
        with Ranges(_parameters(weights)) as ranges:
            wanted = exact.logits(exact.forward_dense(sequence))
        rounded = Qwen2Model(sizes, weights.to(dtype))
        found = rounded.logits(rounded.forward_dense(sequence))
    return Fidelity(STAGE, "logits", dtype, ratio_db(wanted, found), ranges.largest, ranges.place)


def sequence_ids(sizes: LanguageModelConfig, text_ids: Sequence[int], speech_tokens: Sequence[int]) -> list[int]:
    """The ids of a whole text and its speech in the uni-stream layout. text_ids: with those of the prompt; speech_tokens: raw codes."""
    space = TokenSpace.of(sizes)
    return [space.sos, *text_ids, space.task, *(space.speech_offset + token for token in speech_tokens)]


def some_ids(sizes: LanguageModelConfig) -> list[int]:
    """Of no meaning, always the same."""
    random = np.random.default_rng(0)
    text = random.integers(0, sizes.text_vocab_size, _TEXT_IDS).tolist()
    return sequence_ids(sizes, text, random.integers(0, sizes.speech_token_size, _SPEECH_IDS).tolist())


def _parameters(weights: ModelWeights) -> Iterator[tuple[str, Tensor]]:
    yield "llm_decoder.weight", weights.head_weight
    for index, layer in enumerate(weights.layers):
        for field in fields(LayerWeights):
            yield f"layers.{index}.{field.name}", getattr(layer, field.name)
