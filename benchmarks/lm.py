"""Speed of the language model on random weights, without a server: a step of many decoding sequences.

    python benchmarks/lm.py [--kernels auto|graphs|plain] [--rows 1 8 64 256] [--out FILE]
    python benchmarks/lm.py --head 12 0                    with one head read (layer, head), for ``text_position``
    python benchmarks/lm.py --size small                   runs on a CPU

Measured: a step of so many sequences with contexts of 500 to 1000 positions, sampling included, pipelined as the engine runs it; start-up;
memory. Prints a table; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import deque
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import report, synchronize, table
from bistream.checkpoints.config import LanguageModelConfig
from bistream.gpu.tier import Tier, choose_tier
from bistream.text2token.engine import SamplingSpec, TokenSpace, TurnLimits
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.sequence import Segment, SlotReset, StepPlan, TurnStart
from bistream.text2token.sizes import graphs_need
from bistream.text2token.step_runner import StepRunner
from bistream.text2token.step_runners import BLOCK_SIZES, device_and_dtype, make_step_runner
from bistream.text2token.weights import LayerWeights, ModelWeights

SIZES = {
    "full": LanguageModelConfig(),
    "small": LanguageModelConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        text_vocab_size=1000, speech_token_size=500, max_position_embeddings=4096,
    ),
}  # fmt: skip
CONTEXTS = range(500, 1000)
REPEATS = 5
TEXT_EVERY = 6  # positions; of an ordinary sequence one in five to seven is text


def random_weights(config: LanguageModelConfig, device: torch.device, dtype: torch.dtype) -> ModelWeights:
    """dtype: of the plain tier's weights; the other tiers pack float32 weights."""
    generator = torch.Generator(device=device).manual_seed(0)

    def normal(*shape: int, std: float = 0.03) -> torch.Tensor:
        return (torch.randn(shape, generator=generator, device=device) * std).to(dtype)

    hidden, inner = config.hidden_size, config.intermediate_size
    qkv = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_size
    layers = tuple(
        LayerWeights(
            input_norm=1 + normal(hidden), qkv_weight=normal(qkv, hidden), qkv_bias=normal(qkv), output_weight=normal(hidden, hidden),
            post_norm=1 + normal(hidden), gate_up_weight=normal(2 * inner, hidden), down_weight=normal(hidden, inner),
        )
        for _ in range(config.num_hidden_layers)
    )  # fmt: skip
    rows = config.num_scores
    embedding = normal(TokenSpace.of(config).size, hidden, std=0.5)
    return ModelWeights(embedding, layers, 1 + normal(hidden), normal(rows, hidden).float(), normal(rows).float())


def decoding_plans(space: TokenSpace, rows: int, settings: EngineSettings) -> tuple[StepPlan, StepPlan]:
    """``rows`` decoding sequences that repeat the same positions: the step that begins their turns, and every later step."""
    limits = TurnLimits(1 << 40, forbidden=frozenset(space.specials))
    needed = -(-CONTEXTS.stop // settings.block_size)
    assert needed <= settings.blocks_per_sequence
    starts = tuple(
        TurnStart(slot, limits, 1 << 40, SlotReset(str(slot), SamplingSpec(seed=slot), tuple(range(slot * needed, (slot + 1) * needed))))
        for slot in range(rows)
    )
    positions = [CONTEXTS[(slot * 37) % len(CONTEXTS)] for slot in range(rows)]
    segments = tuple(Segment(slot, place, None, True, range(0, place, TEXT_EVERY)) for slot, place in enumerate(positions))
    return StepPlan(starts, (), segments, ()), StepPlan((), (), segments, ())


def step_ms(runner: StepRunner, rows: int, steps: int) -> float:
    """Median milliseconds per step of ``rows`` decoding sequences, pipelined as in the engine."""
    first, plan = decoding_plans(runner.space, rows, runner.settings)
    runner.run(first)()
    times = []
    for _ in range(REPEATS):
        waiting = deque(runner.run(plan) for _ in range(runner.run_ahead))
        began = time.perf_counter()
        for _ in range(steps):
            waiting.append(runner.run(plan))
            waiting.popleft()()
        times.append((time.perf_counter() - began) / steps)
        for wait in waiting:
            wait()
    return statistics.median(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="full")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--steps", type=int, default=200, help="steps per measurement (default %(default)s)")
    parser.add_argument("--kernels", default="auto", choices=["auto", "graphs", "plain"], help="which tier computes")
    parser.add_argument("--head", type=int, nargs=2, metavar=("LAYER", "HEAD"), help="attention head to read (default: none)")
    parser.add_argument("--out", help="also write the result to this file")
    options = parser.parse_args()
    config, (device, dtype) = SIZES[options.size], device_and_dtype(options.device, "auto")
    tier = choose_tier("language model", options.kernels, device, dtype, graphs_need(config)).tier
    most = max(*options.rows, 32)
    settings = EngineSettings(
        max_sessions=most, max_rows=most, block_size=BLOCK_SIZES[tier], kv_cache_tokens=most * 1024, max_sequence_ids=2048,
        knows_texts=options.head is not None,
    )  # fmt: skip
    began = time.perf_counter()
    weights = random_weights(config, device, dtype if tier is Tier.PLAIN else torch.float32)
    head = None if options.head is None else (options.head[0], options.head[1])
    runner = make_step_runner(
        tier, config, weights, settings, device, dtype, lambda done, total: print(f"  prepared {done} of {total}"), head
    )  # fmt: skip
    startup_s = time.perf_counter() - began
    assert hasattr(runner, "cache")
    runner.cache.blocks.normal_()
    if (reading := getattr(getattr(runner, "step", None), "reading", None)) is not None:
        reading.is_text[::TEXT_EVERY] = 1
    del weights
    synchronize(device)
    steps = {str(rows): round(step_ms(runner, rows, options.steps), 4) for rows in options.rows}
    table([("sequences", "step ms", "tokens per s"), *((rows, value, round(int(rows) / value * 1e3)) for rows, value in steps.items())])
    metrics: dict[str, object] = {"tier": tier.value, "step_ms": steps, "startup_s": round(startup_s, 2)}
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the float32 weights that were packed
        free, total = torch.cuda.mem_get_info(device)
        metrics["gpu_memory_gb"] = round((total - free) / 1e9, 2)
    shown = {name: getattr(options, name) for name in ("size", "kernels", "head", "steps")}
    shown |= {"dtype": str(dtype), "torch": torch.__version__}
    report("lm", shown | {"contexts": [CONTEXTS.start, CONTEXTS.stop], "max_rows": most}, metrics, options.out)


if __name__ == "__main__":
    main()
