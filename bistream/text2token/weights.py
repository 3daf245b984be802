"""``llm.pt`` in, the tensors of the torch engine out. Called once at start by ``step_runners.load_step_runner``.

Loading is strict (every key, every shape) and fuses tensors: query, key and value projections become one matrix per layer, as
do gate and up projections, and all embeddings become one table in the order of ``TokenSpace``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from bistream.checkpoints.config import LanguageModelConfig
from bistream.checkpoints.reader import check_state_dict, find_file, load_state_dict
from bistream.text2token.products import packed

FILE_NAME = "llm.pt"
BODY = "llm.model.model"


@dataclass(frozen=True)
class LayerWeights:
    """One Qwen2 layer. Matrices are [out, in], as ``torch.nn.functional.linear`` takes them."""

    input_norm: Tensor  # [hidden]
    qkv_weight: Tensor  # [(heads + 2 * kv_heads) * head_size, hidden]
    qkv_bias: Tensor
    output_weight: Tensor  # [hidden, hidden]
    post_norm: Tensor  # [hidden]
    gate_up_weight: Tensor  # [2 * intermediate, hidden], gate first
    down_weight: Tensor  # [hidden, intermediate]

    def packed(self) -> LayerWeights:
        """The matrices in the order of ``products``."""
        return replace(
            self,
            qkv_weight=packed(self.qkv_weight),
            output_weight=packed(self.output_weight),
            gate_up_weight=packed(self.gate_up_weight),
            down_weight=packed(self.down_weight),
        )

    @property
    def is_packed(self) -> bool:
        """Whether all matrices could be."""
        return all(one.is_mkldnn for one in (self.qkv_weight, self.output_weight, self.gate_up_weight, self.down_weight))


@dataclass(frozen=True)
class ModelWeights:
    """The whole model. The head stays float32: ids are sampled from its scores, and it is small."""

    embedding: Tensor  # [TokenSpace.size, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    head_weight: Tensor  # [TokenSpace.num_scores, hidden] float32
    head_bias: Tensor  # [TokenSpace.num_scores] float32; zero where the checkpoint's head has none

    def to(self, dtype: torch.dtype) -> ModelWeights:
        """With all but the head, which is float32 in every tier, in ``dtype``."""
        layers = tuple(LayerWeights(**{name: tensor.to(dtype) for name, tensor in vars(layer).items()}) for layer in self.layers)
        return replace(self, embedding=self.embedding.to(dtype), layers=layers, final_norm=self.final_norm.to(dtype))

    def packed(self) -> ModelWeights:
        """For inference on their device (``products``)."""
        return replace(self, layers=tuple(layer.packed() for layer in self.layers), head_weight=packed(self.head_weight))

    @property
    def is_packed(self) -> bool:
        return self.head_weight.is_mkldnn and all(layer.is_packed for layer in self.layers)


def expected_shapes(config: LanguageModelConfig) -> dict[str, tuple[int, ...]]:
    """Every key of ``llm.pt`` with its shape. ``llm.model.lm_head.weight`` is tied to the text embedding and never used."""
    hidden = config.hidden_size
    head_rows = config.speech_token_size + config.rows.num_stored
    return {
        **({"llm_embedding.weight": (2, hidden)} if config.rows.have_own_table else {}),
        "speech_embedding.weight": (head_rows, hidden),
        "llm_decoder.weight": (head_rows, hidden),
        **({"llm_decoder.bias": (head_rows,)} if config.head_has_bias else {}),
        f"{BODY}.embed_tokens.weight": (config.text_vocab_size, hidden),
        "llm.model.lm_head.weight": (config.text_vocab_size, hidden),
        f"{BODY}.norm.weight": (hidden,),
        **layer_shapes(BODY, config),
    }


def layer_shapes(body: str, config: LanguageModelConfig) -> dict[str, tuple[int, ...]]:
    """Every key of the layers of a Qwen2 below ``body`` with its shape."""
    hidden, key_size = config.hidden_size, config.num_key_value_heads * config.head_size
    shapes: dict[str, tuple[int, ...]] = {}
    for index in range(config.num_hidden_layers):
        layer = f"{body}.layers.{index}"
        for name, size in (("q", hidden), ("k", key_size), ("v", key_size)):
            shapes[f"{layer}.self_attn.{name}_proj.weight"] = (size, hidden)
            shapes[f"{layer}.self_attn.{name}_proj.bias"] = (size,)
        shapes[f"{layer}.self_attn.o_proj.weight"] = (hidden, hidden)
        shapes[f"{layer}.mlp.gate_proj.weight"] = (config.intermediate_size, hidden)
        shapes[f"{layer}.mlp.up_proj.weight"] = (config.intermediate_size, hidden)
        shapes[f"{layer}.mlp.down_proj.weight"] = (hidden, config.intermediate_size)
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
    return shapes


def build_weights(state: Mapping[str, Tensor], config: LanguageModelConfig, device: torch.device, dtype: torch.dtype) -> ModelWeights:
    """Fuse a checked state dict. Raises ``CheckpointError`` for a missing, extra or misshapen key."""
    check_state_dict(FILE_NAME, state, expected_shapes(config))

    # Rows of the checkpoint behind those that are scored mean nothing, and could only be sampled by mistake.
    loaded = dict.fromkeys(("speech_embedding.weight", "llm_decoder.weight", "llm_decoder.bias"), config.num_scores)

    def join(*keys: str, kind: torch.dtype = dtype) -> Tensor:
        parts = [state[key][: loaded.get(key)].to(device=device, dtype=kind) for key in keys]
        return torch.cat(parts) if len(parts) > 1 else parts[0].clone()

    own_table = ("llm_embedding.weight",) if config.rows.have_own_table else ()
    head_weight = join("llm_decoder.weight", kind=torch.float32)
    return ModelWeights(
        embedding=join(f"{BODY}.embed_tokens.weight", "speech_embedding.weight", *own_table),
        layers=fused_layers(join, BODY, config),
        final_norm=join(f"{BODY}.norm.weight"),
        head_weight=head_weight,
        head_bias=join("llm_decoder.bias", kind=torch.float32) if config.head_has_bias else head_weight.new_zeros(config.num_scores),
    )


def fused_layers(join: Callable[..., Tensor], body: str, config: LanguageModelConfig) -> tuple[LayerWeights, ...]:
    """join: the tensors of keys as one."""
    return tuple(
        LayerWeights(
            input_norm=join(f"{layer}.input_layernorm.weight"),
            qkv_weight=join(*(f"{layer}.self_attn.{name}_proj.weight" for name in "qkv")),
            qkv_bias=join(*(f"{layer}.self_attn.{name}_proj.bias" for name in "qkv")),
            output_weight=join(f"{layer}.self_attn.o_proj.weight"),
            post_norm=join(f"{layer}.post_attention_layernorm.weight"),
            gate_up_weight=join(f"{layer}.mlp.gate_proj.weight", f"{layer}.mlp.up_proj.weight"),
            down_weight=join(f"{layer}.mlp.down_proj.weight"),
        )
        for layer in (f"{body}.layers.{index}" for index in range(config.num_hidden_layers))
    )


def load_weights(model_dir: str | Path, config: LanguageModelConfig, device: torch.device, dtype: torch.dtype) -> ModelWeights:
    """Read ``llm.pt`` of a model directory. Raises ``CheckpointError`` naming file, key and shapes."""
    return build_weights(load_state_dict(find_file(model_dir, FILE_NAME)), config, device, dtype)
