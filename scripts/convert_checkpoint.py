#!/usr/bin/env python3
"""Converts the language model's checkpoint.

    convert_checkpoint.py huggingface --model-dir CosyVoice2-0.5B --out build/cosyvoice2_llm
    convert_checkpoint.py llm_pt --merged build/cosyvoice2_llm --model-dir CosyVoice2-0.5B --out llm.pt
    convert_checkpoint.py tensorrt_llm --merged build/cosyvoice2_llm --out build/trtllm_checkpoint --tp_size 2

huggingface   llm.pt and CosyVoice-BlankEN of either family to the merged checkpoint: one vocabulary of text and speech, with the ids
              of yuekai/cosyvoice2_llm or yuekai/Fun-CosyVoice3-0.5B-2512-LLM-HF. TensorRT-LLM's PyTorch backend and transformers
              (trust_remote_code=True) load it; vLLM with upstream's class, which knows CosyVoice2's.
llm_pt        the merged checkpoint, for example after a training with transformers, back to llm.pt.
tensorrt_llm  the merged checkpoint to the input of build_engine.py. Needs TensorRT-LLM 1.2.1, whose TensorRT engine backend ended
              after 1.3.0rc20. This was never run: no machine with TensorRT-LLM was available.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from bistream.checkpoint import find_file
from bistream.commands.waiting import Waiting
from bistream.conversion.calibration import read_texts, write_dataset
from bistream.conversion.merged import write_llm_pt, write_merged
from bistream.conversion.records import file_sha256, read_record, write_folder
from bistream.conversion.tensorrt_llm_checkpoint import DTYPES, Parallelism, Quantization, check_options, convert
from bistream.conversion.tensorrt_llm_library import load_library
from bistream.errors import BistreamError, ConfigError
from bistream.text2token.weights import FILE_NAME


def to_huggingface(options: argparse.Namespace) -> str:
    source = {
        "conversion": "llm.pt to the merged Hugging Face checkpoint",
        "llm_pt_sha256": file_sha256(find_file(options.model_dir, FILE_NAME)),
        "dtype": options.dtype,
    }

    def write(folder: Path) -> None:
        write_merged(options.model_dir, folder, getattr(torch, options.dtype))

    made = write_folder(options.out, source, write)
    return f"{'made' if made else 'have'} {options.out}, the merged checkpoint of {options.model_dir} in {options.dtype}"


def to_llm_pt(options: argparse.Namespace) -> str:
    if options.out.exists():
        raise ConfigError(f"{options.out} exists already; remove it or name another file.")
    write_llm_pt(options.merged, options.model_dir, options.out)
    return f"made {options.out}; put it in the place of llm.pt in a copy of {options.model_dir}"


def to_tensorrt_llm(options: argparse.Namespace) -> str:
    parallelism = Parallelism(options.tp_size, options.pp_size, options.cp_size)
    quantization = Quantization(
        weight_only=options.weight_only_precision if options.use_weight_only else None,
        smoothquant=options.smoothquant,
        per_channel=options.per_channel,
        per_token=options.per_token,
        int8_kv_cache=options.int8_kv_cache,
    )
    check_options(options.merged, parallelism, quantization)
    if quantization.needs_calibration and (options.calibration_text is None or options.model_dir is None):
        raise ConfigError("--smoothquant and --int8_kv_cache need --calibration-text FILE (one text in each line) and --model-dir.")
    texts = read_texts(options.calibration_text) if quantization.needs_calibration else []
    library = load_library()
    source = {
        "conversion": "merged Hugging Face checkpoint to a TensorRT-LLM checkpoint",
        "merged": read_record(options.merged) or file_sha256(options.merged / "config.json"),
        "tensorrt_llm": library.version,
        "dtype": options.dtype,
        "parallelism": vars(parallelism),
        "quantization": vars(quantization),
        "calibration": texts,
    }

    def write(folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="calibration-") as scratch:
            calibration = write_dataset(options.model_dir, texts, Path(scratch), options.device) if texts else None
            convert(library, options.merged, folder, options.dtype, parallelism, quantization, calibration)

    made = write_folder(options.out, source, write)
    return f"{'made' if made else 'have'} {options.out}, {parallelism.num_ranks} rank(s) in {options.dtype}; next: scripts/build_engine.py"


def add_both(parser: argparse.ArgumentParser, name: str, **settings: object) -> None:
    """An option in our spelling and in that of TensorRT-LLM's own script."""
    parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", dest=name, **settings)  # type: ignore[arg-type]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="huggingface | llm_pt | tensorrt_llm")

    merge = commands.add_parser("huggingface", help="llm.pt to the merged checkpoint")
    merge.add_argument(
        "--model-dir", type=Path, required=True, metavar="DIR", help="CosyVoice2-0.5B, Fun-CosyVoice3-0.5B-2512, or one with a tuned llm.pt"
    )
    merge.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write; an older conversion there is replaced")
    merge.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="float32 loses nothing (default: %(default)s, as upstream's)")
    merge.set_defaults(run=to_huggingface)

    back = commands.add_parser("llm_pt", help="the merged checkpoint back to llm.pt")
    back.add_argument("--merged", type=Path, required=True, metavar="DIR", help="the merged checkpoint")
    back.add_argument("--model-dir", type=Path, required=True, metavar="DIR", help="gives the sizes and the tokenizer")
    back.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write; must not exist")
    back.set_defaults(run=to_llm_pt)

    engine = commands.add_parser("tensorrt_llm", help="the merged checkpoint to the input of build_engine.py")
    engine.add_argument("--merged", type=Path, required=True, metavar="DIR", help="the merged checkpoint")
    engine.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write; an older conversion there is replaced")
    engine.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of weights and activations (default: %(default)s)")
    for name, meaning in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context")):
        add_both(engine, f"{name}_size", type=int, default=1, metavar="N", help=f"GPUs of {meaning} parallelism (default: 1)")
    add_both(engine, "use_weight_only", action="store_true", help="quantize weights alone")
    add_both(
        engine, "weight_only_precision", choices=("int8", "int4"), default="int8", help="with --use_weight_only (default: %(default)s)"
    )
    engine.add_argument("--smoothquant", "-sq", type=float, metavar="ALPHA", help="int8 weights and activations; 0.5 is a good first try")
    add_both(engine, "per_channel", action="store_true", help="with --smoothquant: a scale for each channel of the weights")
    add_both(engine, "per_token", action="store_true", help="with --smoothquant: a scale for each token")
    add_both(engine, "int8_kv_cache", action="store_true", help="keys and values in int8")
    engine.add_argument("--calibration-text", type=Path, metavar="FILE", help="texts that the model speaks to calibrate, one per line")
    engine.add_argument("--model-dir", type=Path, metavar="DIR", help="with --calibration-text: the model that speaks them")
    engine.add_argument("--device", default="auto", help="with --calibration-text: where it speaks (default: %(default)s)")
    engine.set_defaults(run=to_tensorrt_llm)
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    try:
        with Waiting("converting"):
            sentence = options.run(options)
        print(sentence)
    except (BistreamError, OSError) as error:
        print(f"convert_checkpoint.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
