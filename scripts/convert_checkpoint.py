#!/usr/bin/env python3
"""Converts the language model's checkpoint to the merged form that TensorRT-LLM loads, and transformers and vLLM, and back to llm.pt.

    convert_checkpoint.py huggingface --model-dir CosyVoice2-0.5B --out build/cosyvoice2_llm
    convert_checkpoint.py huggingface --model-dir Spark-TTS-0.5B --out build/spark_llm
    convert_checkpoint.py llm_pt --merged build/cosyvoice2_llm --model-dir CosyVoice2-0.5B --out llm.pt

huggingface   llm.pt and CosyVoice-BlankEN of either CosyVoice to the merged checkpoint: one vocabulary of text and speech, with the ids
              of yuekai/cosyvoice2_llm or yuekai/Fun-CosyVoice3-0.5B-2512-LLM-HF. transformers load it with trust_remote_code=True;
              vLLM with upstream's class, which knows CosyVoice2's. Of Spark-TTS, whose LLM/ is one vocabulary already and which other
              programs load as it is, a form for TensorRT-LLM alone, with a head over what may be sampled.
llm_pt        the merged checkpoint of a CosyVoice, for example after a training with transformers, back to llm.pt.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from bistream.checkpoints.files import family_of
from bistream.checkpoints.one_table import OneTableConfig
from bistream.checkpoints.reader import find_file, read_config
from bistream.commands.waiting import Waiting
from bistream.conversion.merged import write_llm_pt, write_merged
from bistream.conversion.one_table import write_merged_table
from bistream.conversion.records import MADE_OF, file_sha256, write_folder
from bistream.errors import BistreamError, ConfigError
from bistream.text2token.weights import FILE_NAME

DTYPES = ("float16", "bfloat16", "float32")


def to_huggingface(options: argparse.Namespace) -> str:
    checkpoint, dtype = read_config(options.model_dir), getattr(torch, options.dtype)
    source = {MADE_OF: file_sha256(find_file(options.model_dir, checkpoint.family.language_model_file)), "dtype": options.dtype}

    def write(folder: Path) -> object:
        if isinstance(checkpoint.language_model, OneTableConfig):
            return write_merged_table(options.model_dir, checkpoint, folder, dtype)
        return write_merged(options.model_dir, folder, dtype)

    made = write_folder(options.out, source, write)
    return f"{'made' if made else 'have'} {options.out}, the merged checkpoint of {options.model_dir} in {options.dtype}"


def to_llm_pt(options: argparse.Namespace) -> str:
    if options.out.exists():
        raise ConfigError(f"{options.out} exists already; remove it or name another file.")
    family = family_of(options.model_dir)
    if family.language_model_file != FILE_NAME:
        raise ConfigError(f"{family.title} has no {FILE_NAME}; train {family.text_directory}/ itself, which transformers load.")
    write_llm_pt(options.merged, options.model_dir, options.out)
    return f"made {options.out}; put it in the place of llm.pt in a copy of {options.model_dir}"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="huggingface | llm_pt")
    merge = commands.add_parser("huggingface", help="the language model to the merged checkpoint")
    merge.add_argument(
        "--model-dir", type=Path, required=True, metavar="DIR", help="of any family, released or with a tuned language model"
    )
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
