"""The Hugging Face baseline of ``benchmarks/lm.py``: one decode step of ``Qwen2ForCausalLM``, eager, as ``generate`` does it."""

from __future__ import annotations

import statistics
import time

import torch
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from benchmarks._common import synchronize
from bistream.checkpoint_config import LanguageModelConfig

MERGED_EXTRA_IDS = 2 + 3  # the merged checkpoint appends the speech ids, three stop ids and two specials to the text ids


def hugging_face_step_ms(
    config: LanguageModelConfig, device: torch.device, dtype: torch.dtype, batches: tuple[int, ...], context: int, steps: int
) -> dict[str, float]:
    """Median milliseconds of a greedy decoding step by batch size, with ``context`` positions in the cache of every sequence."""
    hf_config = Qwen2Config(
        vocab_size=config.text_vocab_size + config.speech_token_size + MERGED_EXTRA_IDS,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        tie_word_embeddings=True,
    )
    with torch.device(device):
        model: torch.nn.Module = Qwen2ForCausalLM(hf_config)
    model.to(dtype).eval()
    return {str(batch): _step_ms(model, config, device, dtype, batch, context, steps) for batch in batches}


@torch.inference_mode()
def _step_ms(
    model: torch.nn.Module, config: LanguageModelConfig, device: torch.device, dtype: torch.dtype, batch: int, context: int, steps: int
) -> float:
    cache = DynamicCache()
    shape = (batch, config.num_key_value_heads, context, config.head_size)
    for layer in range(config.num_hidden_layers):
        cache.update(torch.randn(shape, device=device, dtype=dtype), torch.randn(shape, device=device, dtype=dtype), layer)
    ids = torch.zeros((batch, 1), dtype=torch.long, device=device)
    times = []
    for _ in range(steps + 3):
        synchronize(device)
        began = time.perf_counter()
        ids = model(input_ids=ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(dim=-1)
        synchronize(device)
        times.append(time.perf_counter() - began)
    return round(statistics.median(times[3:]) * 1e3, 3)
