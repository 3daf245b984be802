"""Sections of the yaml, as data, in; sizes out. Each kind of flow and vocoder has its own reader. Called by ``reader.read_config``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from bistream.checkpoints.config import (
    CausalVocoderConfig,
    DitConfig,
    DitFlowConfig,
    EstimatorConfig,
    FlowConfig,
    FlowEncoderConfig,
    LanguageModelConfig,
    VocoderConfig,
)
from bistream.families.family import Family, FlowKind, VocoderKind

MOST_SOLVER_STEPS = 100
_FLOW_KEYS = ("vocab_size", "input_size", "output_size", "spk_embed_dim", "pre_lookahead_len", "token_mel_ratio")


def _pick(section: Mapping[str, Any], *names: str, **renamed: str) -> dict[str, Any]:
    """The named keys that a yaml section has, lists converted to tuples; ``field=key`` renames."""
    keys = {**{name: name for name in names}, **renamed}
    return {field: _freeze(section[key]) for field, key in keys.items() if key in section}


def _freeze(value: Any) -> Any:
    return tuple(_freeze(item) for item in value) if isinstance(value, list) else value


def language_model_config(llm: Mapping[str, Any], qwen: Mapping[str, Any], family: Family) -> LanguageModelConfig:
    """llm: of the yaml; qwen: the content of ``CosyVoice-BlankEN/config.json``."""
    body = _pick(
        qwen,
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_theta",
        "max_position_embeddings",
        text_vocab_size="vocab_size",
    )
    sampling = _pick(llm.get("sampling", {}), "top_p", "top_k", "win_size", "tau_r")
    own = _pick(llm, "speech_token_size", "mix_ratio")
    return LanguageModelConfig(
        **body,
        **sampling,
        **own,
        rows=family.rows,
        blocks=family.blocks,
        tokens_per_second=family.audio_format.tokens_per_second,
        head_has_bias=family.head_has_bias,
    )


def _flow_config(flow: Mapping[str, Any]) -> FlowConfig:
    encoder = FlowEncoderConfig(
        **_pick(
            flow["encoder"],
            "input_size",
            "output_size",
            "attention_heads",
            "linear_units",
            "num_blocks",
            "num_up_blocks",
            "static_chunk_size",
        )
    )
    decoder = flow["decoder"]
    estimator = EstimatorConfig(
        **_pick(
            decoder["estimator"],
            "in_channels",
            "out_channels",
            "channels",
            "attention_head_dim",
            "n_blocks",
            "num_mid_blocks",
            "num_heads",
            "static_chunk_size",
        )
    )
    cfm = decoder.get("cfm_params", {}).get("content", {})
    return FlowConfig(
        encoder=encoder,
        estimator=estimator,
        **_pick(flow, *_FLOW_KEYS, tokens_per_second="input_frame_rate"),
        **_pick(cfm, "inference_cfg_rate"),
        n_timesteps=_solver_steps(cfm.get("n_timesteps", FlowConfig.n_timesteps)),
    )


def _dit_flow_config(flow: Mapping[str, Any]) -> DitFlowConfig:
    estimator = _pick(flow["decoder"]["estimator"], *(field.name for field in dataclasses.fields(DitConfig)))
    cfm = flow["decoder"].get("cfm_params", {}).get("content", {})
    return DitFlowConfig(
        dit=DitConfig(**estimator),
        **_pick(flow, *_FLOW_KEYS, tokens_per_second="input_frame_rate"),
        **_pick(flow.get("pre_lookahead_layer", {}), lookahead_channels="channels"),
        **_pick(cfm, "inference_cfg_rate"),
        n_timesteps=_solver_steps(cfm.get("n_timesteps", FlowConfig.n_timesteps)),
    )


def _solver_steps(value: Any) -> int:
    """The released yaml has no such key: upstream's code has the number."""
    if not isinstance(value, int) or not 1 <= value <= MOST_SOLVER_STEPS:
        raise ValueError(f"n_timesteps is {value!r}, not a number from 1 to {MOST_SOLVER_STEPS}")
    return value


def _vocoder_config(hift: Mapping[str, Any]) -> VocoderConfig:
    return VocoderConfig(**_vocoder_sizes(hift))


def _causal_vocoder_config(hift: Mapping[str, Any]) -> CausalVocoderConfig:
    return CausalVocoderConfig(**_vocoder_sizes(hift), **_pick(hift, "conv_pre_look_right"))


def _vocoder_sizes(hift: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_pick(
            hift,
            "in_channels",
            "base_channels",
            "nb_harmonics",
            "sampling_rate",
            "nsf_alpha",
            "nsf_sigma",
            "nsf_voiced_threshold",
            "upsample_rates",
            "upsample_kernel_sizes",
            "resblock_kernel_sizes",
            "resblock_dilation_sizes",
            "source_resblock_kernel_sizes",
            "source_resblock_dilation_sizes",
            "lrelu_slope",
            "audio_limit",
        ),
        **_pick(hift.get("istft_params", {}), istft_n_fft="n_fft", istft_hop_len="hop_len"),
        **_pick(hift.get("f0_predictor", {}), f0_channels="cond_channels"),
    }


FLOWS: dict[FlowKind, Callable[[Mapping[str, Any]], FlowConfig]] = {"unet": _flow_config, "dit": _dit_flow_config}
VOCODERS: dict[VocoderKind, Callable[[Mapping[str, Any]], VocoderConfig]] = {"hift": _vocoder_config, "causal_hift": _causal_vocoder_config}
