"""What deadlines between solver steps bring: closed-loop callers on a simulated server. No GPU, no network: a simulation.

    python benchmarks/deadlines.py [--callers 16,64,128,256] [--seconds 5] [--no-slack] [--out FILE]
    python benchmarks/deadlines.py --family cosyvoice3 [--vocoder-ms 0.16] --max-hop-chunks 4
    python benchmarks/deadlines.py --one-gpu

The decisions are the product's; their clock is simulated, and service times are those measured on one H200 (``_deadline_load`` says what is
left out). ``before``: whole batches of up to 150 ms, filled from the front of the queue. ``whole``: ``max_suspensions`` 0. ``steps``:
``max_suspensions`` 5, the default. ``calm 80``, ``calm 40``: and batches without urgent hops of at most so many ms while first hops come.
--one-gpu: the models slow each other down, and give way to each other or not (``_deadline_shared``); batches as ``steps``.
Short texts: 5.2 to 6 s of audio; longer ones: 12 to 40 s. Prints milliseconds; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import report, table
from benchmarks._deadline_callers import DitBatches, batch_seconds
from benchmarks._deadline_load import Load, Results
from benchmarks._deadline_policies import ShorterCalm, WholeBatches
from benchmarks._deadline_shared import one_gpu
from bistream.family import COSYVOICE2, COSYVOICE3
from bistream.orchestration.hop_policy import HopPolicy
from bistream.token2wav.hop_queue import BatchPace
from bistream.token2wav.turns import FIRST_TOKENS_PER_S, StepDecision, Turns

POLICIES: dict[str, Callable[[], Turns]] = {
    "before": WholeBatches,
    "whole": lambda: Turns(BatchPace(FIRST_TOKENS_PER_S), 0),
    "steps": lambda: Turns(BatchPace(FIRST_TOKENS_PER_S), 5),
    "calm 80": lambda: ShorterCalm(5, 0.08),
    "calm 40": lambda: ShorterCalm(5, 0.04),
}
TEXTS = {"short": (130, 150), "longer": (300, 1000)}  # speech tokens of a session
WARM_S = {"short": 2.0, "longer": 5.0}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", default="16,64,128,256")
    parser.add_argument("--seconds", type=float, default=5.0, help="simulated, after a warm-up")
    parser.add_argument("--no-slack", action="store_true", help="pulls of tokens do not say how urgent they are, as before")
    parser.add_argument("--max-hop-chunks", type=int, default=1, help="as the parameter (default %(default)s)")
    parser.add_argument("--family", choices=[COSYVOICE2.name, COSYVOICE3.name], default=COSYVOICE2.name, help="whose service times")
    parser.add_argument("--vocoder-ms", type=float, default=0.16, help="of CosyVoice3, for a chunk (default %(default)s, as measured)")
    parser.add_argument("--one-gpu", action="store_true", help="both models on it")
    parser.add_argument("--out", help="file for the result")
    options = parser.parse_args(arguments)
    metrics: dict[str, float] = {}
    policy, is_dit = HopPolicy(max_chunks=options.max_hop_chunks), options.family == COSYVOICE3.name
    times = {"seconds": DitBatches(options.vocoder_ms / 1000) if is_dit else batch_seconds, "chunks_join": is_dit}
    rows: list[list[object]] = []
    for text, tokens in TEXTS.items():
        for callers in map(int, options.callers.split(",")):
            for name, load in (one_gpu(POLICIES["steps"]) if options.one_gpu else on_two_gpus()).items():
                made = load(callers, tokens=tokens, names_slack=not options.no_slack, policy=policy, **times)
                found = made.run(WARM_S[text], options.seconds)
                values = summary(found, options.seconds)
                metrics |= {f"{text}_{callers}_{name}_{key}": value for key, value in values.items()}
                rows.append([text, callers, name, *values.values()])
    table([["text", "callers", "policy", *summary(Results(), 1.0)], *rows])
    report(
        "deadlines (simulated)",
        torch.device("cpu"),
        {
            "callers": options.callers,
            "seconds": options.seconds,
            "slack": not options.no_slack,
            "family": options.family,
            "vocoder_ms": options.vocoder_ms if is_dit else None,
            "max_hop_chunks": options.max_hop_chunks,
            "one_gpu": options.one_gpu,
        },  # fmt: skip
        metrics,
        options.out,
    )


def on_two_gpus() -> dict[str, Callable[..., Load]]:
    def load(make: Callable[[], Turns]) -> Callable[..., Load]:
        return lambda callers, **settings: Load(callers, make(), **settings)

    return {name: load(make) for name, make in POLICIES.items()}


def summary(found: Results, seconds: float) -> dict[str, float]:
    def ms(values: Sequence[float], quantile: float) -> float:
        return round(1000 * float(np.quantile(values, quantile)), 1) if values else 0.0

    return {
        "first_audio_p50": ms(found.first_audio, 0.5),
        "first_audio_p99": ms(found.first_audio, 0.99),
        "tokens_p50": ms(found.token_waits, 0.5),
        "tokens_p99": ms(found.token_waits, 0.99),
        "hop_wait_p50": ms(found.first_waits, 0.5),
        "hop_wait_p99": ms(found.first_waits, 0.99),
        "late_hops": sum(late_s > 0.0 for late_s in found.late),
        "audio_s_per_s": round(found.audio_s / seconds),
        "suspensions": found.decisions.get(StepDecision.SUSPEND, 0),
        "most_suspended_ms": round(1000 * found.most_suspended_s),
    }


if __name__ == "__main__":
    main()
