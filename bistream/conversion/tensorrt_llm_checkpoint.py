"""The merged checkpoint to a TensorRT-LLM checkpoint, the input of ``trtllm-build``: one safetensors file for each rank.

TensorRT-LLM's own converter for Qwen2 does it. Its Qwen2 has no bias at the head, so the bias is added to the files afterwards, and the
engine is built with the class of ``tensorrt_llm_model.py``, which has one. Only for the TensorRT engine backend of TensorRT-LLM.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from bistream.conversion.merged import HEAD_BIAS
from bistream.conversion.safetensors_files import load_tensors, save_tensors
from bistream.conversion.tensorrt_llm_library import Library
from bistream.errors import CheckpointError, ConfigError
from bistream.text2token.tensorrt_llm.contract import VERSION

DTYPES = ("float16", "bfloat16", "float32")
WEIGHT_ONLY = {"int8": "W8A16", "int4": "W4A16"}


@dataclass(frozen=True)
class Parallelism:
    """GPUs that share one model: tp by heads and vocabulary, pp by layers, cp by positions."""

    tp_size: int = 1
    pp_size: int = 1
    cp_size: int = 1

    @property
    def num_ranks(self) -> int:
        """Files of the checkpoint; ranks that differ in positions alone share one."""
        return self.tp_size * self.pp_size

    def is_last_stage(self, rank: int) -> bool:
        """Whether this rank has the head. Ranks of one stage are neighbours (TensorRT-LLM, tensorrt_llm/mapping.py)."""
        return rank // self.tp_size == self.pp_size - 1


@dataclass(frozen=True)
class Quantization:
    """weight_only: int8 or int4 weights, 16-bit arithmetic. smoothquant: its alpha, 0 to 1; weights and activations in int8."""

    weight_only: str | None = None
    smoothquant: float | None = None
    per_channel: bool = False
    per_token: bool = False
    int8_kv_cache: bool = False

    @property
    def needs_calibration(self) -> bool:
        return self.smoothquant is not None or self.int8_kv_cache

    @property
    def algorithm(self) -> str | None:
        """The member of TensorRT-LLM's ``QuantAlgo``."""
        if self.weight_only is not None:
            return WEIGHT_ONLY[self.weight_only]
        if self.smoothquant is None:
            return None
        channel = "PER_CHANNEL" if self.per_channel else "PER_TENSOR"
        token = "_PER_TOKEN" if self.per_token else "_PER_TENSOR" if self.per_channel else ""
        return f"W8A8_SQ_{channel}{token}_PLUGIN"


def check_options(merged_dir: Path, parallelism: Parallelism, quantization: Quantization) -> None:
    """Raises ``ConfigError`` for options that exclude each other or do not fit the network, whatever the version."""
    if quantization.weight_only is not None and quantization.smoothquant is not None:
        raise ConfigError("--use_weight_only and --smoothquant exclude each other; leave one out.")
    if quantization.smoothquant is not None and not 0 <= quantization.smoothquant <= 1:
        raise ConfigError(f"--smoothquant is {quantization.smoothquant:g}; set it between 0 and 1 (0.5 is a good first try).")
    if (quantization.per_channel or quantization.per_token) and quantization.smoothquant is None:
        raise ConfigError("--per_channel and --per_token are options of --smoothquant; give that, or leave them out.")
    sizes = read_merged_config(merged_dir)
    for option, value, name, total in (
        ("--tp_size", parallelism.tp_size, "attention heads", sizes["num_attention_heads"]),
        ("--pp_size", parallelism.pp_size, "layers", sizes["num_hidden_layers"]),
        ("--cp_size", parallelism.cp_size, "", 0),
    ):
        if value < 1 or (total and total % value):
            divides = f"a divisor of the {total} {name}" if total else "1 or more"
            raise ConfigError(f"{option} is {value}; set it to {divides}.")


def read_merged_config(merged_dir: Path) -> dict[str, Any]:
    """``config.json``. Raises ``CheckpointError`` where it is missing or damaged."""
    try:
        config: dict[str, Any] = json.loads((merged_dir / "config.json").read_text(encoding="utf-8"))
        return config | {name: int(config[name]) for name in ("num_attention_heads", "num_hidden_layers", "vocab_size")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{merged_dir} has no readable config.json ({type(error).__name__}); make the merged checkpoint first: "
            "convert_checkpoint.py huggingface."
        ) from error


def convert(
    library: Library,
    merged_dir: Path,
    out: Path,
    dtype: str,
    parallelism: Parallelism,
    quantization: Quantization,
    calibration: Path | None,
) -> None:
    """Write the checkpoint into the existing folder ``out``.

    calibration: a folder that ``calibration.write_dataset`` made, where ``quantization.needs_calibration``.
    Raises ``ConfigError`` for an option that this version of TensorRT-LLM does not have, and ``CheckpointError``.
    """
    check_options(merged_dir, parallelism, quantization)
    quant_config = _quant_config(library, quantization)
    _check_parallelism(library, parallelism)
    if quantization.needs_calibration:
        if calibration is None:
            raise ConfigError("--smoothquant and --int8_kv_cache need texts to calibrate with; give --calibration-text FILE.")
        library.call(
            "QWenForCausalLM.quantize",
            library.QWenForCausalLM.quantize,
            str(merged_dir),
            str(out),
            dtype=dtype,
            mapping=_mapping(library, parallelism),
            quant_config=quant_config,
            calib_dataset=str(calibration),
        )
    else:
        for rank in range(parallelism.num_ranks):
            _convert_rank(library, merged_dir, out, dtype, parallelism, quant_config, rank)
    add_head_bias(merged_dir, out, parallelism)


def _convert_rank(
    library: Library, merged_dir: Path, out: Path, dtype: str, parallelism: Parallelism, quant_config: Any, rank: int
) -> None:
    mapping = _mapping(library, Parallelism(parallelism.tp_size, parallelism.pp_size), rank)
    model = library.call(
        "QWenForCausalLM.from_hugging_face",
        library.QWenForCausalLM.from_hugging_face,
        str(merged_dir),
        dtype,
        mapping=mapping,
        quant_config=quant_config,
    )
    if parallelism.cp_size > 1:  # the weights are those of one position group: its converter sets this afterwards, too
        model.config.mapping.cp_size = parallelism.cp_size
        model.config.mapping.attn_tp_size = model.config.mapping.attn_cp_size = -1  # to be derived
        model.config.mapping.world_size *= parallelism.cp_size
    model.save_checkpoint(str(out), save_config=rank == 0)


def _mapping(library: Library, parallelism: Parallelism, rank: int = 0) -> Any:
    sizes = {"tp_size": parallelism.tp_size, "pp_size": parallelism.pp_size}
    if parallelism.cp_size > 1:
        sizes["cp_size"] = parallelism.cp_size
    world_size = parallelism.num_ranks * parallelism.cp_size
    return library.call("Mapping", library.Mapping, world_size=world_size, rank=rank, **sizes)


def _check_parallelism(library: Library, parallelism: Parallelism) -> None:
    if parallelism.cp_size > 1 and "cp_size" not in inspect.signature(library.Mapping).parameters:
        raise ConfigError(f"TensorRT-LLM {library.version} has no context parallelism; leave --cp_size out or use version {VERSION}.")


def _quant_config(library: Library, quantization: Quantization) -> Any:
    for name in filter(None, (quantization.algorithm, "INT8" if quantization.int8_kv_cache else None)):
        if not hasattr(library.QuantAlgo, name):
            raise ConfigError(f"TensorRT-LLM {library.version} has no quantization {name}; leave it out or use version {VERSION}.")
    config = library.QuantConfig()
    if quantization.algorithm is not None:
        config.quant_algo = getattr(library.QuantAlgo, quantization.algorithm)
    if quantization.smoothquant is not None:
        config.smoothquant_val = quantization.smoothquant
    if quantization.int8_kv_cache:
        config.kv_cache_quant_algo = library.QuantAlgo.INT8
    return config


def add_head_bias(merged_dir: Path, out: Path, parallelism: Parallelism) -> None:
    """Add ``lm_head.bias`` to the files of the ranks that have the head, each its share, in the type of the head's weight."""
    bias = load_tensors(merged_dir)[HEAD_BIAS]
    for rank in range(parallelism.num_ranks):
        if not parallelism.is_last_stage(rank):
            continue
        path = out / f"rank{rank}.safetensors"
        if not path.is_file():
            raise CheckpointError(f"TensorRT-LLM's converter made no {path.name}; see its messages above.")
        weights = load_file(str(path))
        weights[HEAD_BIAS] = _share(bias, parallelism.tp_size, rank % parallelism.tp_size).to(weights["lm_head.weight"].dtype)
        save_tensors(weights, path)


def _share(bias: Tensor, tp_size: int, tp_rank: int) -> Tensor:
    """One rank's rows; the vocabulary is padded to a multiple of ``tp_size``, and what is padded can never be sampled."""
    rows = -(-len(bias) // tp_size)
    padded = torch.full((rows * tp_size,), float("-inf"), dtype=bias.dtype)
    padded[: len(bias)] = bias
    return padded[tp_rank * rows : (tp_rank + 1) * rows].clone()
