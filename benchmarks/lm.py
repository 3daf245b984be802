"""Speed of the language model engine on random weights: steps, turns, many sessions.

    python benchmarks/lm.py [--size full|small] [--device auto] [--kernels auto] [--out benchmarks/results/lm-h200.json]
    python benchmarks/lm.py --kernels graphs --profile [--tuning num_warps=4 num_stages=2]      # kernel by kernel, nothing else

Measured: a step of 1, 8, 64 and 256 decoding sequences (contexts of 500 to 1000 positions) with sampling, as the engine runs
it; the time to read the weights once (their bytes over the measured copy bandwidth); append-to-token latency
of an idle engine; turn latency of many sessions that each speak 25 tokens per second; start-up; memory; and, in the same run, a
decode step of Hugging Face's ``Qwen2ForCausalLM``. Prints a table; the last line is one JSON object. ``--size small`` runs on a CPU.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import percentiles, report, synchronize, table
from benchmarks._lm_sessions import LoadResult, idle_turn_ms, speak_in_real_time
from bistream.checkpoint_config import LanguageModelConfig
from bistream.gpu.tier import Tier, choose_tier
from bistream.text2token.engine import SamplingSpec, TokenSpace, TurnLimits
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.sequence import Segment, SlotReset, StepPlan, TurnStart
from bistream.text2token.sizes import kernels_need
from bistream.text2token.step_runner import StepRunner
from bistream.text2token.step_runners import BLOCK_SIZES, device_and_dtype, make_step_runner
from bistream.text2token.torch_engine import TorchEngine
from bistream.text2token.weights import LayerWeights, ModelWeights, expected_shapes

SIZES = {
    "full": LanguageModelConfig(),
    "small": LanguageModelConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        text_vocab_size=1000, speech_token_size=500, max_position_embeddings=4096,
    ),
}  # fmt: skip


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


def print_progress(done: int, total: int) -> None:
    print(f"  prepared {done} of {total} row counts")


def weight_bytes_of(config: LanguageModelConfig, dtype: torch.dtype) -> int:
    """Bytes of weights that every step reads, without embedding rows, if all are ``dtype``."""
    shapes = {key: shape for key, shape in expected_shapes(config).items() if ".layers." in key or key == "llm_decoder.weight"}
    return sum(map(math.prod, shapes.values())) * dtype.itemsize


def make_runner(options: argparse.Namespace, tier: Tier, settings: EngineSettings, device: torch.device, dtype: torch.dtype) -> StepRunner:
    config = SIZES[options.size]
    weights = random_weights(config, device, dtype if tier is Tier.PLAIN else torch.float32)
    if not options.tuning:
        return make_step_runner(tier, config, weights, settings, device, dtype, print_progress)
    if tier is not Tier.GRAPHS:
        sys.exit("--tuning is for the graphs tier; add --kernels graphs")
    from bistream.text2token.graphs.runner import GraphStepRunner  # noqa: PLC0415  (loads PyTorch's compiler)
    from bistream.text2token.graphs.tuning import GraphTuning  # noqa: PLC0415
    from bistream.text2token.graphs.weights import fold_weights  # noqa: PLC0415

    values: dict[str, Any] = {name: int(value) for name, value in (setting.split("=") for setting in options.tuning)}
    tuning = GraphTuning(**values)
    folded = fold_weights(weights, config, device, dtype)
    return GraphStepRunner(config, folded, settings, progress=print_progress, tuning=tuning)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second of a large copy, read and written bytes counted."""
    size = 1 << (31 if device.type == "cuda" else 27)
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(8):
        synchronize(device)
        began = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        times.append(time.perf_counter() - began)
    return 2 * size / statistics.median(times[2:])


def decoding_plans(space: TokenSpace, rows: int, contexts: range, settings: EngineSettings) -> tuple[StepPlan, StepPlan]:
    """``rows`` decoding sequences that repeat the same positions: the step that begins their turns, and every later step."""
    limits = TurnLimits(1 << 40, forbidden=frozenset(space.specials))
    needed = -(-contexts.stop // settings.block_size)
    assert needed <= settings.blocks_per_sequence
    starts = tuple(
        TurnStart(slot, limits, 1 << 40, SlotReset(str(slot), SamplingSpec(seed=slot), tuple(range(slot * needed, (slot + 1) * needed))))
        for slot in range(rows)
    )
    segments = tuple(Segment(slot, contexts[(slot * 37) % len(contexts)], None, True) for slot in range(rows))
    return StepPlan(starts, (), segments, ()), StepPlan((), (), segments, ())


def step_ms(runner: StepRunner, rows: int, contexts: range, steps: int) -> float:
    """Median milliseconds per step of ``rows`` decoding sequences, pipelined as in the engine."""
    first, plan = decoding_plans(runner.space, rows, contexts, runner.settings)
    runner.run(first)()
    times = []
    for _ in range(5):
        waiting = deque(runner.run(plan) for _ in range(runner.run_ahead))
        began = time.perf_counter()
        for _ in range(steps):
            waiting.append(runner.run(plan))
            waiting.popleft()()
        times.append((time.perf_counter() - began) / steps)
        for wait in waiting:
            wait()
    return statistics.median(times) * 1e3


def check_baseline() -> None:
    """Exit at once, not after minutes of measuring, if the baseline cannot be computed."""
    if importlib.util.find_spec("transformers") is None:
        sys.exit("transformers is not installed; run: pip install -r requirements/dev.txt, or leave the baseline out: --no-baseline")


def measure_baseline(config: LanguageModelConfig, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    from benchmarks._lm_baseline import hugging_face_step_ms  # noqa: PLC0415  (needs transformers)

    return hugging_face_step_ms(config, device, dtype, (1, 64), 750, 20)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="full")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--steps", type=int, default=200, help="steps per measurement")
    parser.add_argument("--sessions", type=int, default=256, help="simulated real-time sessions")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each of them speaks")
    parser.add_argument("--kernels", default="auto", choices=["auto", "kernels", "graphs", "plain"], help="which tier computes")
    parser.add_argument("--tuning", nargs="*", metavar="NAME=NUMBER", help="fields of GraphTuning to override (graphs tier)")
    parser.add_argument("--profile", action="store_true", help="print steps and their kernels, then exit")
    parser.add_argument("--no-baseline", action="store_true", help="leave out Hugging Face")
    parser.add_argument("--out", help="also write the result to this file")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if not (options.no_baseline or options.profile):
        check_baseline()
    config = SIZES[options.size]
    device, dtype = device_and_dtype(options.device, "auto")
    torch.manual_seed(0)
    contexts = range(500, 1000)
    max_rows = max(*options.rows, 256 if options.size == "full" else 32)
    tier = choose_tier("language model", options.kernels, device, dtype, kernels_need(config, dtype)).tier
    block_size = BLOCK_SIZES[tier]
    settings = EngineSettings(
        max_sessions=max(options.sessions, *options.rows), max_rows=max_rows, block_size=block_size,
        kv_cache_tokens=max(options.sessions, *options.rows) * 1024, max_sequence_ids=2048,
    )  # fmt: skip
    began = time.perf_counter()
    runner = make_runner(options, tier, settings, device, dtype)
    startup_s = time.perf_counter() - began
    assert hasattr(runner, "cache")
    runner.cache.blocks.normal_()
    synchronize(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the float32 weights that were packed
    steps = {str(rows): round(step_ms(runner, rows, contexts, options.steps), 4) for rows in options.rows}
    memory_gb = torch.cuda.mem_get_info(device)[1] - torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    if options.profile:
        print(f"ready after {startup_s:.1f} s, {memory_gb / 1e9:.2f} GB, step ms {steps}")
        print_profiles(runner, options.rows, contexts)
        return
    floor_ms = weight_bytes_of(config, dtype) / copy_bandwidth(device) * 1e3
    engine = TorchEngine(runner, settings, runner=runner)
    gc.collect()
    gc.freeze()  # as the model process does once it has loaded (bistream/triton/startup.py)
    first_ms, last_ms = idle_turn_ms(engine, 500, 30)
    load = speak_in_real_time(engine, options.sessions, options.seconds)
    engine.check_integrity()
    engine.close()
    baseline = {} if options.no_baseline else measure_baseline(config, device, dtype)
    metrics = {
        "step_ms": steps,
        "floor_ms": round(floor_ms, 4),
        "step_over_floor": {rows: round(value / floor_ms, 2) for rows, value in steps.items()},
        "tokens_per_s": {rows: round(int(rows) / value * 1e3) for rows, value in steps.items()},
        "baseline_hf_step_ms": baseline,
        "append_to_first_token_ms": round(first_ms, 3),
        "append_to_15_tokens_ms": round(last_ms, 3),
        f"turn_ms_{options.sessions}_sessions": percentiles(load.turn_ms, 50, 99, 99.9),
        f"first_token_ms_{options.sessions}_sessions": percentiles(load.first_id_ms, 50, 99),
        f"first_turn_ms_{options.sessions}_sessions": percentiles(load.first_turn_ms, 50, 99),
        "load_tokens_per_s": round(load.tokens_per_s),
        "load_generator_late_ms": round(load.longest_late_ms, 2),
        "startup_s": round(startup_s, 2),
        "gpu_memory_gb": round(memory_gb / 1e9, 2),
    }
    print_tables(metrics, load)
    settings_used = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    shown = {"size": options.size, "dtype": str(dtype), "contexts": [contexts.start, contexts.stop], "torch": torch.__version__}
    report("lm", device, {**shown, **settings_used, "seconds": options.seconds}, metrics, options.out)


def print_profiles(runner: StepRunner, row_counts: Sequence[int], contexts: range) -> None:
    from benchmarks._lm_profile import print_profile  # noqa: PLC0415  (CUDA only)

    for rows in row_counts:
        first, plan = decoding_plans(runner.space, rows, contexts, runner.settings)
        runner.run(first)()
        print_profile(runner, plan, rows)


def print_tables(metrics: dict[str, object], load: LoadResult) -> None:
    steps, over, rates = metrics["step_ms"], metrics["step_over_floor"], metrics["tokens_per_s"]
    assert isinstance(steps, dict) and isinstance(over, dict) and isinstance(rates, dict)
    table([("rows", "step ms", "x weight floor", "tokens/s"), *((rows, steps[rows], over[rows], rates[rows]) for rows in steps)])
    print(f"{len(load.turn_ms)} turns under load")
    table([("metric", "value"), *((name, value) for name, value in metrics.items() if not isinstance(value, dict) or "p50" in value)])
    print(f"Hugging Face step ms: {metrics['baseline_hf_step_ms']}")


if __name__ == "__main__":
    main()
