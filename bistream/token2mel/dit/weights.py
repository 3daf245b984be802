"""``flow.pt`` of CosyVoice3: the keys of the released file, their shapes, and the parameters of ``DitFlow`` that they become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from bistream.checkpoints.config import DitConfig, DitFlowConfig
from bistream.checkpoints.reader import check_state_dict, find_file, load_state_dict
from bistream.errors import CheckpointError
from bistream.token2mel.dit.estimator import BLOCK_VECTORS, CONV_KERNEL, END_VECTORS, POSITION_CONVS, DitBlock
from bistream.token2mel.dit.modulation import TIME_FREQUENCIES, Modulation
from bistream.token2mel.dit.network import DitFlow
from bistream.token2mel.entries import Entry, conv, linear, parameters_of
from bistream.token2mel.sizes import DIT_CONV_GROUPS, LOOKAHEAD_HISTORY_TOKENS
from bistream.token2mel.state_rows import StateRows
from bistream.token2mel.weights import FILE_NAME

_ESTIMATOR = "decoder.estimator."
_ROTARY = f"{_ESTIMATOR}rotary_embed.inv_freq"  # a buffer of the file; ``estimator.rotation`` computes the same numbers


def expected_shapes(config: DitFlowConfig) -> dict[str, tuple[int, ...]]:
    """Every key of ``flow.pt`` and its shape."""
    shapes = {entry.key: entry.shape for entry in (*_entries(config), *_modulation_entries(config.dit))}
    return shapes | {_ROTARY: (config.dit.dim_head // 2,)}


def load_network(model_dir: str | Path, config: DitFlowConfig, device: torch.device, dtype: torch.dtype) -> DitFlow:
    """The network of a model directory, ready to use. Raises ``CheckpointError`` naming file, key and shapes."""
    return build_network(load_state_dict(find_file(model_dir, FILE_NAME)), config, device, dtype)


def build_network(state: Mapping[str, Tensor], config: DitFlowConfig, device: torch.device, dtype: torch.dtype) -> DitFlow:
    """The network with the tensors of ``state`` (keys as in the file), in ``dtype`` on ``device``."""
    check_config(config)
    check_state_dict(FILE_NAME, state, expected_shapes(config))
    with torch.device("meta"):
        network = DitFlow(config)
    network.load_state_dict(parameters_of(state, _entries(config), device, dtype), strict=True, assign=True)
    network.requires_grad_(False)
    network.eval()
    for block in network.matching.estimator.blocks:
        assert isinstance(block, DitBlock)
        block.context_weight = StateRows.of(block.to_keys_values.weight.detach())
    network.matching.prepare(config.output_size, build_modulation(state, config.dit))
    return network


def build_modulation(state: Mapping[str, Tensor], config: DitConfig) -> Modulation:
    """The time embedding and its projections, in float32 where the tensors of ``state`` are."""
    with torch.device("meta"):
        modulation = Modulation(config)
    device = state[f"{_ESTIMATOR}proj_out.weight"].device
    modulation.load_state_dict(parameters_of(state, _modulation_entries(config), device, torch.float32), strict=True, assign=True)
    return modulation.requires_grad_(False).eval()


def check_config(config: DitFlowConfig) -> None:
    """Reject sizes that this architecture does not support. Raises ``CheckpointError``."""
    dit, size = config.dit, config.output_size
    _require((dit.mel_dim, dit.mu_dim, dit.spk_dim) == (size, size, size), "mel_dim, mu_dim and spk_dim must equal flow.output_size")
    _require(config.input_size == dit.mu_dim, "flow.input_size must equal decoder.estimator.mu_dim")
    _require(dit.dim % DIT_CONV_GROUPS == 0, f"decoder.estimator.dim must be a multiple of {DIT_CONV_GROUPS}")
    _require(dit.dim_head % 2 == 0, "decoder.estimator.dim_head must be even")
    _require(
        dit.static_chunk_size % config.token_mel_ratio == 0,
        "decoder.estimator.static_chunk_size must be a multiple of flow.token_mel_ratio",
    )


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise CheckpointError(f"The yaml is at fault: {sentence}; restore the file that belongs to these weights.")


def _entries(config: DitFlowConfig) -> Iterator[Entry]:
    dit, width = config.dit, config.input_size
    inner, estimator = dit.heads * dit.dim_head, "matching.estimator"
    yield Entry("input_embedding.weight", "token_embedding.weight", (config.vocab_size, width))
    yield from linear("spk_embed_affine_layer", "speaker_projection", config.output_size, config.spk_embed_dim)
    yield from conv("pre_lookahead_layer.conv1", "lookahead.conv1", config.lookahead_channels, width, config.pre_lookahead_len + 1)
    yield from conv("pre_lookahead_layer.conv2", "lookahead.conv2", width, config.lookahead_channels, LOOKAHEAD_HISTORY_TOKENS + 1)
    channels = 2 * dit.mel_dim + dit.mu_dim + dit.spk_dim
    yield from linear(f"{_ESTIMATOR}input_embed.proj", f"{estimator}.input.projection", dit.dim, channels)
    for index in range(POSITION_CONVS):
        key, parameter = f"{_ESTIMATOR}input_embed.conv_pos_embed.conv{index + 1}.0", f"{estimator}.input.convs.{index}"
        yield Entry(f"{key}.weight", f"{parameter}.weight", (dit.dim, dit.dim // DIT_CONV_GROUPS, CONV_KERNEL))
        yield Entry(f"{key}.bias", f"{parameter}.bias", (dit.dim,))
    for index in range(dit.depth):
        key, parameter = f"{_ESTIMATOR}transformer_blocks.{index}", f"{estimator}.blocks.{index}"
        yield from linear(f"{key}.attn.to_q", f"{parameter}.to_query", inner, dit.dim)
        yield from linear(f"{key}.attn.to_k", f"{parameter}.to_keys_values", inner, dit.dim)
        yield from linear(f"{key}.attn.to_v", f"{parameter}.to_keys_values", inner, dit.dim)
        yield from linear(f"{key}.attn.to_out.0", f"{parameter}.to_out", dit.dim, inner)
        yield from linear(f"{key}.ff.ff.0.0", f"{parameter}.linear_in", dit.ff_mult * dit.dim, dit.dim)
        yield from linear(f"{key}.ff.ff.2", f"{parameter}.linear_out", dit.dim, dit.ff_mult * dit.dim)
    yield from linear(f"{_ESTIMATOR}proj_out", f"{estimator}.projection", dit.mel_dim, dit.dim)


def _modulation_entries(dit: DitConfig) -> Iterator[Entry]:
    yield from linear(f"{_ESTIMATOR}time_embed.time_mlp.0", "linear1", dit.dim, TIME_FREQUENCIES)
    yield from linear(f"{_ESTIMATOR}time_embed.time_mlp.2", "linear2", dit.dim, dit.dim)
    for index in range(dit.depth):
        yield from linear(f"{_ESTIMATOR}transformer_blocks.{index}.attn_norm.linear", f"blocks.{index}", BLOCK_VECTORS * dit.dim, dit.dim)
    yield from linear(f"{_ESTIMATOR}norm_out.linear", "end", END_VECTORS * dit.dim, dit.dim)
