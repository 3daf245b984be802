#!/usr/bin/env python3
"""Smoke test of an engine of the language model: texts in, speech tokens out, compared with the torch engine under greedy sampling.

    test_engine.py --model-dir CosyVoice2-0.5B --engine-dir build/cosyvoice2_llm     TensorRT-LLM's PyTorch backend, which serves
    test_engine.py --model-dir CosyVoice2-0.5B --compiled build/trtllm_engine        a TensorRT engine of build_engine.py
    test_engine.py --model-dir CosyVoice2-0.5B --engine torch --dtype bfloat16       the torch engine itself, in another precision

CosyVoice3 alike: name Fun-CosyVoice3-0.5B-2512 and what was made of it.

The reference is the torch engine on the CPU in float32. Every id is judged by the reference's scores, given the ids before it: it may be
below the best score by at most --tolerance, because precisions round differently. With TensorRT-LLM this was never run: no machine
with it was available.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from bistream.checkpoint import read_config
from bistream.commands.waiting import Waiting
from bistream.config import RuntimeConfig
from bistream.conversion.merged import vocabulary_of
from bistream.conversion.smoke_test import TOLERANCES, Decoder, compare, compiled_decoder
from bistream.conversion.utterances import decode, prompt_of, reference_engine, told
from bistream.errors import BistreamError
from bistream.text2token.engine import SamplingSpec, TokenSpace
from bistream.text2token.factory import make_engine
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.weights import load_weights

GREEDY = SamplingSpec(temperature=0.0)
TEXTS = ("The first sound left the server long before the last word had arrived.", "今天的天气很好，我们沿着河边散步。")
MAX_PROMPT_IDS = 1024


@contextmanager
def engine_under_test(options: argparse.Namespace) -> Iterator[Decoder]:
    """Raises ``ConfigError`` or ``CheckpointError`` where it cannot be loaded."""
    if options.compiled is not None:
        sizes = read_config(options.model_dir).language_model
        yield compiled_decoder(options.compiled, vocabulary_of(options.model_dir, sizes), TokenSpace.of(sizes))
        return
    config = RuntimeConfig(
        model_dir=str(options.model_dir),
        engine=options.engine,
        engine_dir=str(options.engine_dir or ""),
        device=options.device,
        dtype=options.dtype,
        max_sessions=1,
        max_session_tokens=MAX_PROMPT_IDS + options.max_new,
    )
    engine, _ = make_engine(config)
    try:
        yield lambda prompt, max_new: decode(engine, prompt, GREEDY, max_new)
    finally:
        engine.close()


def run(options: argparse.Namespace) -> bool:
    """Compare every text; returns whether all are right."""
    sizes = read_config(options.model_dir).language_model
    tolerance = TOLERANCES[options.dtype] if options.tolerance is None else options.tolerance
    all_right = True
    # TensorRT-LLM first: it must find CUDA unused in this process.
    with (
        engine_under_test(options) as decode_tested,
        reference_engine(options.model_dir, MAX_PROMPT_IDS + options.max_new) as parts,
    ):
        network = Qwen2Model(sizes, load_weights(options.model_dir, sizes, torch.device("cpu"), torch.float32))
        for text in options.text or TEXTS:
            prompt = prompt_of(network.space, parts.tokenizer.encode(told(parts.family, text))[: MAX_PROMPT_IDS - 2])
            found, expected = (
                ids if stop_id is None else [*ids, stop_id]
                for ids, stop_id in (decode_tested(prompt, options.max_new), decode(parts.engine, prompt, GREEDY, options.max_new))
            )
            result = compare(network, prompt, found, expected)
            right = result.is_right(tolerance)
            all_right &= right
            print(f"{'right' if right else 'WRONG'}: {text}")
            print(f"  ids: {[network.space.speech_token(token_id) for token_id in found]}")
            print(
                f"  {result.num_equal} leading ids of {result.num_ids} as the torch engine's; {result.num_best} are its first choice; "
                f"largest distance to the best score {result.worst_gap:.4f} (allowed: {tolerance:g})"
            )
    return all_right


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", type=Path, required=True, metavar="DIR", help="the model directory; its llm.pt is the reference")
    parser.add_argument("--engine", choices=("tensorrt_llm", "torch"), default="tensorrt_llm", help="default: %(default)s")
    parser.add_argument("--engine-dir", type=Path, metavar="DIR", help="the merged checkpoint, for tensorrt_llm")
    parser.add_argument("--compiled", type=Path, metavar="DIR", help="a TensorRT engine, instead of --engine")
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
            "test_engine.py: the engine decodes other ids than llm.pt; convert and build again from this model directory.", file=sys.stderr
        )
    except (BistreamError, OSError) as error:
        print(f"test_engine.py: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
