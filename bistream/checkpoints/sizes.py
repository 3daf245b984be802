"""Sections of the yaml, as data, in; sizes out. Each kind of flow and vocoder has its own reader. Called by ``reader.read_config``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
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


def _pick(section: Mapping[str, Any], *names: str, **renamed: str) -> dict[str, Any]:
    """The named keys that a yaml section has, lists converted to tuples; ``field=key`` renames."""
    keys = {**{name: name for name in names}, **renamed}
    return {field: _freeze(section[key]) for field, key in keys.items() if key in section}


def _fields(kind: type[Any], section: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that have the names of a dataclass's fields, other dataclasses excepted."""
    return _pick(section, *(field.name for field in dataclasses.fields(kind) if not dataclasses.is_dataclass(field.default)))


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
    return FlowConfig(
        encoder=FlowEncoderConfig(**_fields(FlowEncoderConfig, flow["encoder"])),
        estimator=EstimatorConfig(**_fields(EstimatorConfig, flow["decoder"]["estimator"])),
        **_flow_sizes(flow),
    )


def _dit_flow_config(flow: Mapping[str, Any]) -> DitFlowConfig:
    return DitFlowConfig(
        dit=DitConfig(**_fields(DitConfig, flow["decoder"]["estimator"])),
        **_flow_sizes(flow),
        **_pick(flow.get("pre_lookahead_layer", {}), lookahead_channels="channels"),
    )


def _flow_sizes(flow: Mapping[str, Any]) -> dict[str, Any]:
    solver = flow["decoder"].get("cfm_params", {}).get("content", {})
    return {
        **_fields(FlowConfig, flow),
        **_pick(flow, tokens_per_second="input_frame_rate"),
        **_pick(solver, "inference_cfg_rate"),
        "n_timesteps": _solver_steps(solver.get("n_timesteps", FlowConfig.n_timesteps)),
    }


def _solver_steps(value: Any) -> int:
    """The released yaml has no such key: upstream's code has the number."""
    if not isinstance(value, int) or not 1 <= value <= MOST_SOLVER_STEPS:
        raise ValueError(f"n_timesteps is {value!r}, not a number from 1 to {MOST_SOLVER_STEPS}")
    return value


def _vocoder_config(hift: Mapping[str, Any], kind: type[VocoderConfig] = VocoderConfig) -> VocoderConfig:
    sizes = {
        **_fields(kind, hift),
        **_pick(hift.get("istft_params", {}), istft_n_fft="n_fft", istft_hop_len="hop_len"),
        **_pick(hift.get("f0_predictor", {}), f0_channels="cond_channels"),
    }
    return kind(**sizes)


FLOWS: dict[FlowKind, Callable[[Mapping[str, Any]], FlowConfig]] = {"unet": _flow_config, "dit": _dit_flow_config}
VOCODERS: dict[VocoderKind, Callable[[Mapping[str, Any]], VocoderConfig]] = {
    "hift": _vocoder_config,
    "causal_hift": partial(_vocoder_config, kind=CausalVocoderConfig),
}
