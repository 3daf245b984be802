"""``bistream stats``: how often a server's models were called, and how long a call took."""

from __future__ import annotations

import argparse
from typing import Any

from bistream.client.exit_codes import EXIT_OK
from bistream.client.inquiry import MODELS, Inquiry, ask, show

_DURATIONS = ("queue", "compute_infer")


def main(arguments: list[str] | None = None) -> int:
    return ask("How often a server's models were called since its start, and how long they took.", arguments, _answer)


def _answer(server: Inquiry, options: argparse.Namespace) -> int:
    found = {name: server.statistics(name) for name in MODELS if server.is_ready(name)}
    if options.json:
        show(found)
        return EXIT_OK
    print(f"{'model':20} {'calls':>9} {'failed':>9} {'queue, ms':>11} {'compute, ms':>12}")
    for name, answer in found.items():
        for version in answer.get("model_stats", []):
            counts = version.get("inference_stats", {})
            calls, failed = (int(counts.get(kind, {}).get("count", 0)) for kind in ("success", "fail"))
            means = [_mean_ms(counts.get(duration, {})) for duration in _DURATIONS]
            print(f"{name:20} {calls:9} {failed:9} {means[0]:11.2f} {means[1]:12.2f}")
    return EXIT_OK


def _mean_ms(duration: dict[str, Any]) -> float:
    """Triton counts nanoseconds; its JSON over gRPC has them as text."""
    count = int(duration.get("count", 0))
    return int(duration.get("ns", 0)) / count / 1e6 if count else 0.0
