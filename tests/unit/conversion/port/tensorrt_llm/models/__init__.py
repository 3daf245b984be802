"""``QWenForCausalLM``: writes the files that the real one writes, of the tensors that the tests look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tensorrt_llm.layers import ColumnLinear
from tensorrt_llm.mapping import Mapping
from tensorrt_llm.models.modeling_utils import QuantConfig

CALLS: list[dict[str, Any]] = []  # of ``quantize``


class Config:
    def __init__(self, hf_dir: str, dtype: str, mapping: Mapping, quant_config: QuantConfig) -> None:
        values = json.loads((Path(hf_dir) / "config.json").read_text())
        assert values["model_type"] == "qwen2"
        self.architecture = values["architectures"][0]
        self.vocab_size, self.hidden_size = values["vocab_size"], values["hidden_size"]
        self.rotary_base = values["rope_theta"]
        self.dtype, self.mapping, self.quantization = dtype, mapping, quant_config

    def to_json_file(self, path: Path) -> None:
        mapping = {name: getattr(self.mapping, name) for name in ("world_size", "tp_size", "pp_size", "cp_size")}
        values = {"architecture": self.architecture, "dtype": self.dtype, "mapping": mapping, "vocab_size": self.vocab_size}
        quantization = {"quant_algo": self.quantization.quant_algo, "kv_cache_quant_algo": self.quantization.kv_cache_quant_algo}
        path.write_text(json.dumps({**values, "hidden_size": self.hidden_size, "quantization": quantization}))


class QWenForCausalLM:
    def __init__(self, config: Any) -> None:
        self.config = config
        self.weights: dict[str, torch.Tensor] = {}
        if config.mapping.is_last_pp_rank():
            self.lm_head = ColumnLinear(config.hidden_size, config.vocab_size, bias=False, dtype=config.dtype)

    @classmethod
    def from_hugging_face(
        cls,
        hf_model_or_dir: str,
        dtype: str = "auto",
        mapping: Mapping | None = None,
        quant_config: QuantConfig | None = None,
        **kwargs: Any,
    ) -> QWenForCausalLM:
        mapping = mapping or Mapping()
        model = cls(Config(hf_model_or_dir, dtype, mapping, quant_config or QuantConfig()))
        source = load_file(str(Path(hf_model_or_dir) / "model.safetensors"))
        kind = getattr(torch, dtype)
        if mapping.is_first_pp_rank():
            model.weights["transformer.vocab_embedding.weight"] = source["model.embed_tokens.weight"].to(kind)
        if mapping.is_last_pp_rank():
            model.weights["lm_head.weight"] = source["lm_head.weight"].chunk(mapping.tp_size)[mapping.tp_rank].to(kind).clone()
        return model

    def save_checkpoint(self, output_dir: str, save_config: bool = True) -> None:
        save_file(self.weights, f"{output_dir}/rank{self.config.mapping.rank}.safetensors")
        if save_config:
            self.config.to_json_file(Path(output_dir) / "config.json")

    @classmethod
    def quantize(
        cls,
        hf_model_dir: str,
        output_dir: str,
        dtype: str = "auto",
        mapping: Mapping | None = None,
        quant_config: QuantConfig | None = None,
        *,
        calib_dataset: str = "cnn_dailymail",
        calib_batches: int = 512,
        **kwargs: Any,
    ) -> None:
        mapping = mapping or Mapping()
        samples = (Path(calib_dataset) / "validation.jsonl").read_text().splitlines()
        CALLS.append(
            {"quant_config": quant_config, "samples": [json.loads(line)["text"] for line in samples], "calib_dataset": calib_dataset}
        )
        for rank in range(mapping.tp_size * mapping.pp_size):
            part = Mapping(mapping.tp_size * mapping.pp_size, rank, tp_size=mapping.tp_size, pp_size=mapping.pp_size)
            cls.from_hugging_face(hf_model_dir, dtype, part, quant_config).save_checkpoint(output_dir, save_config=rank == 0)
