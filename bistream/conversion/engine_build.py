"""``trtllm-build`` with the sizes of the configuration: a TensorRT-LLM checkpoint in, a TensorRT engine out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bistream.config import RuntimeConfig
from bistream.conversion import tensorrt_llm_library
from bistream.conversion.merged import ARCHITECTURES
from bistream.errors import CheckpointError, ConfigError
from bistream.text2token.tensorrt_llm.contract import VERSION

EXECUTABLE = "trtllm-build"
MODEL_FILE = Path(__file__).with_name("tensorrt_llm_model.py")
LEAST_STEP_TOKENS = 8192  # TensorRT-LLM's default of max_num_tokens
TOKENS_PER_BLOCK = 32


@dataclass(frozen=True)
class EngineSizes:
    """max_seq_len: ids of one session. max_num_tokens: ids of one step, over all sessions."""

    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int

    @classmethod
    def of(cls, config: RuntimeConfig) -> EngineSizes:
        """A whole session must fit into a step: after an eviction its ids are computed again."""
        return cls(config.max_sessions, config.max_session_tokens, max(LEAST_STEP_TOKENS, config.max_session_tokens))


def read_kind(checkpoint: Path) -> tuple[str, str]:
    """Type and architecture of a TensorRT-LLM checkpoint. Raises ``CheckpointError`` where it is none, or has lost the head's bias."""
    try:
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        dtype, architecture = str(config["dtype"]), str(config["architecture"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{checkpoint} is no TensorRT-LLM checkpoint ({type(error).__name__}); make one: convert_checkpoint.py tensorrt_llm."
        ) from error
    if architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"{checkpoint} is a checkpoint of {architecture}, without the bias of the speech head: its engine would sample text ids; "
            "make it with convert_checkpoint.py tensorrt_llm."
        )
    return dtype, architecture


def build_options(sizes: EngineSizes, dtype: str, architecture: str, workers: int) -> dict[str, str]:
    """Options of ``trtllm-build`` with their values; blocks of the cache can be used again only with paged context attention."""
    options = {
        "max_batch_size": str(sizes.max_batch_size),
        "max_input_len": str(sizes.max_seq_len),
        "max_seq_len": str(sizes.max_seq_len),
        "max_num_tokens": str(sizes.max_num_tokens),
        "max_beam_width": "1",
        "gemm_plugin": dtype,
        "kv_cache_type": "paged",
        "tokens_per_block": str(TOKENS_PER_BLOCK),
        "model_cls_file": str(MODEL_FILE),
        "model_cls_name": architecture,
        "workers": str(workers),
    }
    if dtype != "float32":  # its kernels are for 16 bit
        options["use_paged_context_fmha"] = "enable"
    return options


def find_builder() -> str:
    """Raises ``ConfigError`` where TensorRT-LLM or its builder is missing."""
    version = tensorrt_llm_library.installed_version()
    builder = shutil.which(EXECUTABLE)
    if builder is None:
        raise ConfigError(
            f"TensorRT-LLM {version} comes without {EXECUTABLE}, so it builds no engines (versions after "
            f"{tensorrt_llm_library.LAST_WITH_ENGINES} do not): serve the merged checkpoint as it is, or use version "
            f"{VERSION}."
        )
    return builder


def known_options(builder: str) -> set[str]:
    """The options that this ``trtllm-build`` has, from its help. Raises ``ConfigError`` where it does not start."""
    result = subprocess.run([builder, "--help"], capture_output=True, text=True, check=False)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1][:160]
        raise ConfigError(f"{builder} does not start ({last}); repair it or use {tensorrt_llm_library.WHERE}.")
    return set(re.findall(r"--([a-z0-9_]+)", result.stdout))


def build(checkpoint: Path, out: Path, sizes: EngineSizes, workers: int) -> None:
    """Build into the existing folder ``out``; the builder's messages go to the error output.

    Raises ``ConfigError`` for an option that this version does not have or a build that failed, and ``CheckpointError``.
    """
    options = build_options(sizes, *read_kind(checkpoint), workers)
    builder = find_builder()
    missing = sorted(set(options) - known_options(builder))
    if missing:
        raise ConfigError(f"{builder} has no option --{missing[0]}; use TensorRT-LLM {VERSION}.")
    command = [builder, "--checkpoint_dir", str(checkpoint), "--output_dir", str(out)]
    for name, value in options.items():
        command += [f"--{name}", value]
    result = subprocess.run(command, stdout=2, check=False)
    if result.returncode:
        raise ConfigError(f"{EXECUTABLE} failed with exit status {result.returncode}; its messages above say why.")
    if not (out / "config.json").is_file():
        raise ConfigError(f"{EXECUTABLE} ended without an engine; its messages above say why.")
