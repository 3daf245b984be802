"""``config.json`` of a Hugging Face Qwen2 model, with the keys of transformers 4, which TensorRT-LLM 1.2 and version 5 read as well."""

from __future__ import annotations

from typing import Any

from bistream.checkpoints.config import LanguageModelConfig


def qwen2_config(sizes: LanguageModelConfig, vocab_size: int, dtype: str, **more: Any) -> dict[str, Any]:
    """vocab_size: rows of the table. dtype: ``float32`` or another word of torch. more: keys of one kind of checkpoint, or in place of
    those here."""
    values = {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": sizes.intermediate_size,
        "max_position_embeddings": sizes.max_position_embeddings,
        "max_window_layers": sizes.num_hidden_layers,
        "model_type": "qwen2",
        "num_attention_heads": sizes.num_attention_heads,
        "num_hidden_layers": sizes.num_hidden_layers,
        "num_key_value_heads": sizes.num_key_value_heads,
        "rms_norm_eps": sizes.rms_norm_eps,
        "rope_theta": sizes.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": dtype,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": vocab_size,
    }
    return dict(sorted({**values, **more}.items()))
