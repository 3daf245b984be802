#!/usr/bin/env python3
"""Converts the language model's checkpoint between llm.pt and the merged form that transformers, TensorRT-LLM and vLLM load.

    convert_checkpoint.py huggingface --model-dir CosyVoice2-0.5B --out build/cosyvoice2_llm
    convert_checkpoint.py llm_pt --merged build/cosyvoice2_llm --model-dir CosyVoice2-0.5B --out llm.pt

huggingface   llm.pt and CosyVoice-BlankEN of either family to the merged checkpoint: one vocabulary of text and speech, with the ids
              of yuekai/cosyvoice2_llm or yuekai/Fun-CosyVoice3-0.5B-2512-LLM-HF. transformers load it with trust_remote_code=True;
              vLLM with upstream's class, which knows CosyVoice2's.
llm_pt        the merged checkpoint, for example after a training with transformers, back to llm.pt.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from bistream.checkpoints.reader import find_file
from bistream.commands.waiting import Waiting
from bistream.conversion.merged import write_llm_pt, write_merged
from bistream.conversion.records import file_sha256, write_folder
from bistream.errors import BistreamError, ConfigError
from bistream.text2token.weights import FILE_NAME

DTYPES = ("float16", "bfloat16", "float32")


def to_huggingface(options: argparse.Namespace) -> str:
    source = {"llm_pt_sha256": file_sha256(find_file(options.model_dir, FILE_NAME)), "dtype": options.dtype}
    dtype = getattr(torch, options.dtype)
    made = write_folder(options.out, source, lambda folder: write_merged(options.model_dir, folder, dtype))
    return f"{'made' if made else 'have'} {options.out}, the merged checkpoint of {options.model_dir} in {options.dtype}"


def to_llm_pt(options: argparse.Namespace) -> str:
    if options.out.exists():
        raise ConfigError(f"{options.out} exists already; remove it or name another file.")
    write_llm_pt(options.merged, options.model_dir, options.out)
    return f"made {options.out}; put it in the place of llm.pt in a copy of {options.model_dir}"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="huggingface | llm_pt")
    merge = commands.add_parser("huggingface", help="llm.pt to the merged checkpoint")
    merge.add_argument("--model-dir", type=Path, required=True, metavar="DIR", help="of either family, released or with a tuned llm.pt")
    merge.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write; an older conversion there is replaced")
    merge.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="float32 loses nothing (default: %(default)s, as upstream's)")
    merge.set_defaults(run=to_huggingface)
    back = commands.add_parser("llm_pt", help="the merged checkpoint back to llm.pt")
    back.add_argument("--merged", type=Path, required=True, metavar="DIR", help="the merged checkpoint")
    back.add_argument("--model-dir", type=Path, required=True, metavar="DIR", help="gives the sizes and the tokenizer")
    back.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write; must not exist")
    back.set_defaults(run=to_llm_pt)
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
