"""Access to the golden data of the reference implementation (``tests/golden``, or the set named by ``PARITY_DIR``).

Every size comes from the set's ``config.json``: a set with other widths, depths and seeds runs unchanged.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from bistream.config import CheckpointConfig, EstimatorConfig, FlowConfig, FlowEncoderConfig, LanguageModelConfig, VocoderConfig

GOLDEN_DIR = Path(os.environ.get("PARITY_DIR") or Path(__file__).parents[1] / "golden")


@cache
def read_json(name: str) -> Any:
    return json.loads((GOLDEN_DIR / name).read_text(encoding="utf-8"))


@cache
def tensors(name: str) -> dict[str, torch.Tensor]:
    """All tensors of ``<name>.safetensors``."""
    return load_file(GOLDEN_DIR / f"{name}.safetensors")


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


@cache
def checkpoint_config() -> CheckpointConfig:
    """The sizes of the golden models, in the form that a model directory yields."""
    sizes = read_json("config.json")
    return CheckpointConfig(_language_model(sizes["llm"]), _flow(sizes["flow"]), _vocoder(sizes["hift"]))


def _language_model(llm: dict[str, Any]) -> LanguageModelConfig:
    return LanguageModelConfig(**{key: _tuples(value) for key, value in llm.items()})


def _flow(flow: dict[str, Any]) -> FlowConfig:
    encoder = FlowEncoderConfig(
        input_size=flow["dim"],
        output_size=flow["dim"],
        attention_heads=flow["heads"],
        linear_units=flow["linear_units"],
        num_blocks=flow["num_blocks"],
        num_up_blocks=flow["num_up_blocks"],
        static_chunk_size=flow["static_chunk_size"],
    )
    estimator = EstimatorConfig(
        in_channels=flow["est_in_channels"],
        out_channels=flow["mel"],
        channels=tuple(flow["est_channels"]),
        attention_head_dim=flow["est_head_dim"],
        n_blocks=flow["est_n_blocks"],
        num_mid_blocks=flow["est_mid_blocks"],
        num_heads=flow["est_heads"],
        static_chunk_size=flow["static_chunk_size"] * flow["token_mel_ratio"],
    )
    return FlowConfig(
        encoder=encoder,
        estimator=estimator,
        vocab_size=flow["vocab_size"],
        input_size=flow["dim"],
        output_size=flow["mel"],
        spk_embed_dim=flow["spk_embed_dim"],
        pre_lookahead_len=flow["pre_lookahead_len"],
        token_mel_ratio=flow["token_mel_ratio"],
        inference_cfg_rate=flow["cfg_rate"],
        n_timesteps=flow["n_timesteps"],
    )


def _vocoder(hift: dict[str, Any]) -> VocoderConfig:
    renamed = {"n_fft": "istft_n_fft", "hop_len": "istft_hop_len"}
    return VocoderConfig(**{renamed.get(key, key): _tuples(value) for key, value in hift.items()})
