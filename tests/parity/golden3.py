"""Sizes of CosyVoice3's flow and vocoder in its golden data (``golden.COSYVOICE3_SET``), in the form that a model directory yields."""

from __future__ import annotations

from functools import cache
from typing import Any

from bistream.checkpoints.config import CausalVocoderConfig, DitConfig, DitFlowConfig
from tests.parity.golden import COSYVOICE3_SET

read_json, tensors = COSYVOICE3_SET.read_json, COSYVOICE3_SET.tensors


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


@cache
def flow_config() -> DitFlowConfig:
    flow = read_json("config.json")["flow"]
    dit = DitConfig(
        **{name: flow[name] for name in ("dim", "depth", "heads", "dim_head", "ff_mult")},
        mel_dim=flow["mel"],
        mu_dim=flow["mel"],
        spk_dim=flow["mel"],
        static_chunk_size=flow["static_chunk_size"] * flow["token_mel_ratio"],
    )
    return DitFlowConfig(
        dit=dit,
        input_size=flow["mel"],
        output_size=flow["mel"],
        inference_cfg_rate=flow["cfg_rate"],
        **{
            name: flow[name]
            for name in ("vocab_size", "spk_embed_dim", "pre_lookahead_len", "token_mel_ratio", "n_timesteps", "lookahead_channels")
        },
    )


@cache
def vocoder_config() -> CausalVocoderConfig:
    renamed = {"n_fft": "istft_n_fft", "hop_len": "istft_hop_len", "f0_look_right": "f0_look_right"}
    sizes = read_json("config.json")["hift"]
    return CausalVocoderConfig(**{renamed.get(key, key): _tuples(value) for key, value in sizes.items()})
