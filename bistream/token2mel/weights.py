"""``flow.pt``: the keys of the released file, their shapes, and the parameters of ``FlowNetwork`` that they become.

``expected_shapes`` is what a file must hold; ``load_network`` reads one. One table gives both, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from bistream.checkpoints.config import EstimatorConfig, FlowConfig, FlowEncoderConfig
from bistream.checkpoints.reader import check_state_dict, find_file, load_state_dict
from bistream.errors import CheckpointError
from bistream.token2mel.entries import Entry, conv, linear, norm, parameters_of
from bistream.token2mel.estimator import FEED_FORWARD_RATIO, TIME_WIDTH_RATIO, unit_inputs
from bistream.token2mel.flow import FlowNetwork
from bistream.token2mel.sizes import CONV_HISTORY_FRAMES, LOOKAHEAD_HISTORY_TOKENS, UPSAMPLE_HISTORY_TOKENS

FILE_NAME = "flow.pt"
_ESTIMATOR = "decoder.estimator."


def expected_shapes(config: FlowConfig) -> dict[str, tuple[int, ...]]:
    """Every key of ``flow.pt`` and its shape."""
    return {entry.key: entry.shape for entry in _entries(config)}


def file_layout(config: FlowConfig) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """(key of the file, parameter of ``FlowNetwork``, shape in the file) in order; see ``_Entry``. For writers of ``flow.pt``."""
    return tuple((entry.key, entry.parameter, entry.shape) for entry in _entries(config))


def load_network(model_dir: str | Path, config: FlowConfig, device: torch.device, dtype: torch.dtype) -> FlowNetwork:
    """The network of a model directory, ready to use. Raises ``CheckpointError`` naming file, key and shapes."""
    return build_network(load_state_dict(find_file(model_dir, FILE_NAME)), config, device, dtype)


def build_network(state: Mapping[str, Tensor], config: FlowConfig, device: torch.device, dtype: torch.dtype) -> FlowNetwork:
    """The network with the tensors of ``state`` (keys as in the file), in ``dtype`` on ``device``."""
    check_config(config)
    check_state_dict(FILE_NAME, state, expected_shapes(config))
    with torch.device("meta"):
        network = FlowNetwork(config)
    network.load_state_dict(parameters_of(state, _entries(config), device, dtype), strict=True, assign=True)
    network.requires_grad_(False)
    network.eval()
    network.prepare()
    return network


def check_config(config: FlowConfig) -> None:
    """Reject sizes that this architecture does not support. Raises ``CheckpointError``."""
    encoder, estimator = config.encoder, config.estimator
    _require(len(estimator.channels) == 1, "decoder.estimator.channels must hold one width")
    _require(estimator.out_channels == config.output_size, "decoder.estimator.out_channels must equal flow.output_size")
    _require(estimator.in_channels == 4 * config.output_size, "decoder.estimator.in_channels must be 4 times flow.output_size")
    _require(encoder.input_size == config.input_size, "flow.encoder.input_size must equal flow.input_size")
    _require(encoder.input_size == encoder.output_size, "flow.encoder.input_size must equal its output_size")
    _require(encoder.output_size % encoder.attention_heads == 0, "flow.encoder.output_size must be a multiple of attention_heads")
    _require(
        estimator.static_chunk_size == encoder.static_chunk_size * config.token_mel_ratio,
        "decoder.estimator.static_chunk_size must be flow.encoder.static_chunk_size times token_mel_ratio",
    )


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise CheckpointError(f"The yaml is at fault: {sentence}; restore the file that belongs to these weights.")


def _entries(config: FlowConfig) -> Iterator[Entry]:
    yield Entry("input_embedding.weight", "token_embedding.weight", (config.vocab_size, config.input_size))
    yield from linear("spk_embed_affine_layer", "speaker_projection", config.output_size, config.spk_embed_dim)
    yield from linear("encoder_proj", "encoder_projection", config.output_size, config.encoder.output_size)
    yield from _encoder(config.encoder, config)
    yield from _estimator(config.estimator)


def _encoder(sizes: FlowEncoderConfig, config: FlowConfig) -> Iterator[Entry]:
    width = sizes.output_size
    for key, parameter, in_size in (("embed", "embed", sizes.input_size), ("up_embed", "frame_embed", width)):
        yield from linear(f"encoder.{key}.out.0", f"encoder.{parameter}.linear", width, in_size)
        yield from norm(f"encoder.{key}.out.1", f"encoder.{parameter}.norm", width)
    lookahead = "encoder.pre_lookahead_layer"
    yield from conv(f"{lookahead}.conv1", "encoder.lookahead.conv1", width, width, config.pre_lookahead_len + 1)
    yield from conv(f"{lookahead}.conv2", "encoder.lookahead.conv2", width, width, LOOKAHEAD_HISTORY_TOKENS + 1)
    kernel = UPSAMPLE_HISTORY_TOKENS * config.token_mel_ratio + 1
    yield from conv("encoder.up_layer.conv", "encoder.upsample", width, width, kernel)
    yield from norm("encoder.after_norm", "encoder.norm", width)
    for index in range(sizes.num_blocks):
        yield from _conformer_layer(f"encoder.encoders.{index}", f"encoder.token_layers.{index}", sizes)
    for index in range(sizes.num_up_blocks):
        yield from _conformer_layer(f"encoder.up_encoders.{index}", f"encoder.frame_layers.{index}", sizes)


def _conformer_layer(key: str, parameter: str, sizes: FlowEncoderConfig) -> Iterator[Entry]:
    width = sizes.output_size
    attention = f"{parameter}.attention"
    for name in ("q", "k", "v"):
        yield from linear(f"{key}.self_attn.linear_{name}", f"{attention}.to_qkv", width, width)
    yield from linear(f"{key}.self_attn.linear_out", f"{attention}.to_out", width, width)
    yield from linear(f"{key}.self_attn.linear_pos", f"{attention}.to_positions", width, width, bias=False)
    head_shape = (sizes.attention_heads, width // sizes.attention_heads)
    yield Entry(f"{key}.self_attn.pos_bias_u", f"{attention}.content_bias", head_shape)
    yield Entry(f"{key}.self_attn.pos_bias_v", f"{attention}.position_bias", head_shape)
    yield from linear(f"{key}.feed_forward.w_1", f"{parameter}.linear_in", sizes.linear_units, width)
    yield from linear(f"{key}.feed_forward.w_2", f"{parameter}.linear_out", width, sizes.linear_units)
    yield from norm(f"{key}.norm_ff", f"{parameter}.norm_feed_forward", width)
    yield from norm(f"{key}.norm_mha", f"{parameter}.norm_attention", width)


def _estimator(sizes: EstimatorConfig) -> Iterator[Entry]:
    width = sizes.channels[0]
    time_width = TIME_WIDTH_RATIO * width
    kernel = CONV_HISTORY_FRAMES + 1
    yield from linear(f"{_ESTIMATOR}time_mlp.linear_1", "matching.estimator.time_linear1", time_width, sizes.in_channels)
    yield from linear(f"{_ESTIMATOR}time_mlp.linear_2", "matching.estimator.time_linear2", time_width, time_width)
    names = ["down_blocks.0", *(f"mid_blocks.{index}" for index in range(sizes.num_mid_blocks)), "up_blocks.0"]
    for index, (name, in_channels) in enumerate(zip(names, unit_inputs(sizes), strict=True)):
        yield from _unit(_ESTIMATOR + name, f"matching.estimator.units.{index}", in_channels, sizes)
    yield from conv(f"{_ESTIMATOR}down_blocks.0.2", "matching.estimator.down_conv", width, width, kernel)
    yield from conv(f"{_ESTIMATOR}up_blocks.0.2", "matching.estimator.up_conv", width, width, kernel)
    yield from _conv_block(f"{_ESTIMATOR}final_block", "matching.estimator.final_block", width, width)
    yield from conv(f"{_ESTIMATOR}final_proj", "matching.estimator.final_projection", sizes.out_channels, width, 1)


def _conv_block(key: str, parameter: str, width: int, in_channels: int) -> Iterator[Entry]:
    yield from conv(f"{key}.block.0", f"{parameter}.conv", width, in_channels, CONV_HISTORY_FRAMES + 1)
    yield from norm(f"{key}.block.2", f"{parameter}.norm", width)


def _unit(key: str, parameter: str, in_channels: int, sizes: EstimatorConfig) -> Iterator[Entry]:
    width = sizes.channels[0]
    inner = sizes.num_heads * sizes.attention_head_dim
    residual = f"{parameter}.residual"
    yield from linear(f"{key}.0.mlp.1", f"{residual}.time_projection", width, TIME_WIDTH_RATIO * width)
    yield from _conv_block(f"{key}.0.block1", f"{residual}.block1", width, in_channels)
    yield from _conv_block(f"{key}.0.block2", f"{residual}.block2", width, width)
    yield from conv(f"{key}.0.res_conv", f"{residual}.shortcut", width, in_channels, 1)
    for index in range(sizes.n_blocks):
        block, target = f"{key}.1.{index}", f"{parameter}.blocks.{index}"
        yield from linear(f"{block}.attn1.to_q", f"{target}.to_query", inner, width, bias=False)
        yield from linear(f"{block}.attn1.to_k", f"{target}.to_keys_values", inner, width, bias=False)
        yield from linear(f"{block}.attn1.to_v", f"{target}.to_keys_values", inner, width, bias=False)
        yield from linear(f"{block}.attn1.to_out.0", f"{target}.to_out", width, inner)
        yield from linear(f"{block}.ff.net.0.proj", f"{target}.linear_in", FEED_FORWARD_RATIO * width, width)
        yield from linear(f"{block}.ff.net.2", f"{target}.linear_out", width, FEED_FORWARD_RATIO * width)
        yield from norm(f"{block}.norm1", f"{target}.norm_attention", width)
        yield from norm(f"{block}.norm3", f"{target}.norm_feed_forward", width)
