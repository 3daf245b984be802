#!/usr/bin/env python3
"""Builds a TensorRT engine with trtllm-build, in the sizes of the configuration.

    build_engine.py --checkpoint build/trtllm_checkpoint --out build/trtllm_engine --set max_sessions=128
    build_engine.py --backend pytorch        only checks that TensorRT-LLM is installed: it loads the merged checkpoint as it is

Sizes are those of the model llm_bistream: max_sessions sessions at a time of max_session_tokens ids each; --set as in make_model_repo.py.
The server runs TensorRT-LLM's PyTorch backend. An engine is for TensorRT-LLM's own runtimes and for comparisons, and only for the GPU
and the version that it was built with. This was never run: no machine with TensorRT-LLM was available.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from bistream.commands.waiting import Waiting
from bistream.config import RuntimeConfig
from bistream.conversion.engine_build import EngineSizes, build, find_builder
from bistream.conversion.records import read_record, write_folder
from bistream.conversion.tensorrt_llm_library import installed_version
from bistream.errors import BistreamError
from scripts.fill_template import TemplateError, parse_settings
from scripts.make_model_repo import RepositoryError, model_names, model_values

MODEL = "llm_bistream"


def configured(settings: list[str]) -> RuntimeConfig:
    """The configuration of ``llm_bistream`` with these settings, which may be for other models, too."""
    values = model_values(model_names(), {"model_dir": "-", **parse_settings(settings)}, "tensorrt_llm")[MODEL]
    fields = {field.name for field in dataclasses.fields(RuntimeConfig)}
    return RuntimeConfig.from_strings({key: value for key, value in values.items() if key in fields})


def gpu_name() -> str:
    """The GPU that ``trtllm-build`` builds for."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def run(options: argparse.Namespace) -> str:
    if options.backend == "pytorch":
        return f"nothing to build: TensorRT-LLM {installed_version()} loads the merged checkpoint as it is"
    sizes = EngineSizes.of(configured(options.settings))
    find_builder()  # before anything is written
    source = {
        "conversion": "TensorRT engine",
        "checkpoint": read_record(options.checkpoint),
        "tensorrt_llm": installed_version(),
        "gpu": gpu_name(),
        "sizes": dataclasses.asdict(sizes),
    }
    made = write_folder(options.out, source, lambda folder: build(options.checkpoint, folder, sizes, options.workers))
    return f"{'made' if made else 'have'} {options.out}: {sizes.max_batch_size} sessions of {sizes.max_seq_len} ids"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("tensorrt", "pytorch"), default="tensorrt", help="of TensorRT-LLM (default: %(default)s)")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="made by convert_checkpoint.py tensorrt_llm")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write; an older engine there is replaced")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="a setting; may be repeated")
    parser.add_argument("--workers", type=int, default=1, help="ranks that are built at a time (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.backend == "tensorrt" and (options.checkpoint is None or options.out is None):
        parser.error("give --checkpoint and --out")
    try:
        with Waiting("building"):
            sentence = run(options)
        print(sentence)
    except (BistreamError, RepositoryError, TemplateError, OSError) as error:
        print(f"build_engine.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
