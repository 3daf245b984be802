"""Access to the golden data of the reference implementation: of CosyVoice2 (``tests/golden``, or the set named by ``PARITY_DIR``) and of
CosyVoice3 (``tests/golden3``, ``PARITY3_DIR``).

Every size comes from the set's ``config.json``: a set with other widths, depths and seeds runs unchanged.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from bistream.checkpoints.config import CheckpointConfig, EstimatorConfig, FlowConfig, FlowEncoderConfig, LanguageModelConfig, VocoderConfig
from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.families.family import Family

_NO_SIZES = ("end_of_prompt", "extra_speech_rows", "head_bias")
GOLDEN_DIR = Path(os.environ.get("PARITY_DIR") or Path(__file__).parents[1] / "golden")
GOLDEN3_DIR = Path(os.environ.get("PARITY3_DIR") or Path(__file__).parents[1] / "golden3")


_load_file = cache(load_file)


@cache
def _load_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class GoldenSet:
    """The golden data of one family. Files are read once."""

    directory: Path
    family: Family

    def read_json(self, name: str) -> Any:
        return _load_json(self.directory / name)

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """All tensors of ``<name>.safetensors``."""
        return _load_file(self.directory / f"{name}.safetensors")

    def language_model(self) -> LanguageModelConfig:
        """Its sizes, in the form that a model directory yields, but with all rows of the head."""
        return _language_model(self.read_json("config.json")["llm"], self.family)


COSYVOICE2_SET = GoldenSet(GOLDEN_DIR, COSYVOICE2)
COSYVOICE3_SET = GoldenSet(GOLDEN3_DIR, COSYVOICE3)
SETS = {golden_set.family.title: golden_set for golden_set in (COSYVOICE2_SET, COSYVOICE3_SET)}
read_json, tensors = COSYVOICE2_SET.read_json, COSYVOICE2_SET.tensors


@cache
def checkpoint_config() -> CheckpointConfig:
    """The sizes of CosyVoice2's golden models, in the form that a model directory yields."""
    sizes = read_json("config.json")
    return CheckpointConfig(COSYVOICE2_SET.language_model(), _flow(sizes["flow"]), _vocoder(sizes["hift"]))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _language_model(llm: dict[str, Any], family: Family) -> LanguageModelConfig:
    """``rows`` as stored: the reference scores all of them, and the golden cases sample some that the engine is not given."""
    sizes = {key: _tuples(value) for key, value in llm.items() if key not in _NO_SIZES}
    stored = family.rows.num_stored
    assert (llm.get("extra_speech_rows", stored), llm.get("head_bias", True)) == (stored, family.head_has_bias)
    return LanguageModelConfig(**sizes, rows=replace(family.rows, num_scored=stored), head_has_bias=family.head_has_bias)


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
