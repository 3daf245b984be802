#!/usr/bin/env python3
"""Smoke test of an engine of the language model: texts in, speech tokens out, compared with the torch engine under greedy sampling.

    test_engine.py --model-dir CosyVoice2-0.5B --engine-dir build/cosyvoice2_llm     TensorRT-LLM
    test_engine.py --model-dir CosyVoice2-0.5B --engine torch --dtype bfloat16       the torch engine itself, in another precision

The reference is the torch engine on the CPU in float32. Every id is judged by the reference's scores, given the ids before it: it may be
below the best score by at most --tolerance, because precisions round differently. With TensorRT-LLM this was never run: no machine
with it was available.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from bistream.checkpoints.config import CheckpointConfig
from bistream.checkpoints.one_table import OneTableConfig
from bistream.checkpoints.reader import read_config
from bistream.commands.waiting import Waiting
from bistream.config import RuntimeConfig
from bistream.conversion.smoke_test import TOLERANCES, compare, speak
from bistream.errors import BistreamError
from bistream.families.bicodec_tokens import NUM_GLOBAL
from bistream.text.prompt_form import make_prompt_form
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.engine import TokenSpace
from bistream.text2token.factory import load_parts
from bistream.text2token.one_table import weights as one_table
from bistream.text2token.one_table.prompts import SpeakerTokens, begin_speech, clone_prompt
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.weights import load_weights

TEXTS = ("The first sound left the server long before the last word had arrived.", "今天的天气很好，我们沿着河边散步。")
MAX_PROMPT_IDS = 1024


def reference_network(model_dir: Path, checkpoint: CheckpointConfig) -> Qwen2Model:
    """On the CPU, in float32. Raises ``CheckpointError``."""
    sizes, device = checkpoint.language_model, torch.device("cpu")
    if isinstance(sizes, OneTableConfig):
        state = one_table.load_state(model_dir, checkpoint.family.text_directory)
        return Qwen2Model(sizes, one_table.build_weights(state, sizes, device, torch.float32))
    return Qwen2Model(sizes, load_weights(model_dir, sizes, device, torch.float32))


def prompt_of(checkpoint: CheckpointConfig, tokenizer: TextTokenizer, text: str) -> list[int]:
    """Without a recording; of a model that is told who speaks, in the voice of its first codes."""
    sizes = checkpoint.language_model
    if isinstance(sizes, OneTableConfig):

        def encode(content: str) -> list[int]:
            return tokenizer.encode(content)[: MAX_PROMPT_IDS - 64]

        return [*clone_prompt(sizes.tokens, encode, text, SpeakerTokens((0,) * NUM_GLOBAL)), *begin_speech(sizes.tokens, ())]
    space = TokenSpace.of(sizes)
    instruction = make_prompt_form(checkpoint.family.default_instruction, "", "").instruction
    return [space.sos, *tokenizer.encode(instruction + text)[: MAX_PROMPT_IDS - 2], space.task]


def run(options: argparse.Namespace) -> bool:
    """Compare every text; returns whether all are right."""
    checkpoint = read_config(options.model_dir)
    tolerance = TOLERANCES[options.dtype] if options.tolerance is None else options.tolerance
    reference = RuntimeConfig(
        model_dir=str(options.model_dir), device="cpu", max_sessions=1, max_session_tokens=MAX_PROMPT_IDS + options.max_new
    )
    tested = RuntimeConfig(
        model_dir=str(options.model_dir),
        engine=options.engine,
        engine_dir=str(options.engine_dir or ""),
        device=options.device,
        dtype=options.dtype,
        max_sessions=1,
        max_session_tokens=MAX_PROMPT_IDS + options.max_new,
    )
    all_right = True
    # TensorRT-LLM first: it must find CUDA unused in this process.
    with closing(load_parts(tested)) as parts, closing(load_parts(reference)) as torch_parts:
        network = reference_network(options.model_dir, checkpoint)
        space = network.space
        for text in options.text or TEXTS:
            prompt = prompt_of(checkpoint, parts.tokenizer, text)
            found, expected = (speak(one.engine, prompt, options.max_new) for one in (parts, torch_parts))
            result = compare(network, prompt, found, expected)
            all_right &= result.is_right(tolerance)
            print(f"{'right' if result.is_right(tolerance) else 'WRONG'}: {text}")
            print(f"  ids: {[space.speech_token(token_id) for token_id in found]}")
            print(f"  {result.num_equal} leading ids of {result.num_ids} as the torch engine's; ", end="")
            print(f"largest distance to the best score {result.worst_gap:.4f} (allowed: {tolerance:g})")
    return all_right


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model-dir", type=Path, required=True, metavar="DIR", help="the model directory, whose language model is the reference"
    )
    parser.add_argument("--engine", choices=("tensorrt_llm", "torch"), default="tensorrt_llm", help="default: %(default)s")
    parser.add_argument("--engine-dir", type=Path, metavar="DIR", help="the merged checkpoint, for tensorrt_llm")
    parser.add_argument("--text", action="append", help="a text; may be repeated (default: two of its own)")
    parser.add_argument("--max-new", type=int, default=100, metavar="N", help="ids to decode for each text (default: %(default)s)")
    parser.add_argument("--dtype", choices=sorted(TOLERANCES), default="bfloat16", help="of the engine (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="of the engine: auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument(
        "--tolerance", type=float, help=f"default: {', '.join(f'{value:g} in {name}' for name, value in TOLERANCES.items())}"
    )
    options = parser.parse_args(arguments)
    if options.max_new < 1:
        parser.error("--max-new must be 1 or more")
    try:
        with Waiting("comparing"):
            is_equal = run(options)
        if is_equal:
            return 0
        print(
            "test_engine.py: the engine decodes other ids than the torch engine; convert it again from this model directory.",
            file=sys.stderr,
        )
    except (BistreamError, OSError) as error:
        print(f"test_engine.py: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
