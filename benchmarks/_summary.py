"""The metrics of a load test, from the reports of its sessions. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from bistream.client.report import SessionReport

RANKS = (50, 90, 95, 99)


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles; empty without values."""
    if not seconds:
        return {}
    values = {"mean": float(np.mean(seconds)), **{f"p{rank}": float(np.percentile(seconds, rank)) for rank in RANKS}}
    return {name: round(1000 * value, 1) for name, value in values.items()}


def succeeded(reports: Sequence[SessionReport]) -> list[SessionReport]:
    return [report for report in reports if report.error is None and report.chunks]


def second_chunks(reports: Sequence[SessionReport]) -> list[float]:
    """Seconds from the first to the second chunk, of those that have one."""
    return [report.chunks[1].arrived_s - report.chunks[0].arrived_s for report in reports if len(report.chunks) > 1]


def summarise(reports: Sequence[SessionReport], wall_s: float) -> dict[str, Any]:
    done = succeeded(reports)
    audio_s = sum(report.audio_s for report in done)
    return {
        "sessions": len(reports),
        "failed": len(reports) - len(done),
        "wall_s": round(wall_s, 3),
        "audio_s": round(audio_s, 3),
        "real_time_factor": round(wall_s / audio_s, 4) if audio_s else None,
        "time_to_first_audio_ms": milliseconds([report.chunks[0].arrived_s for report in done]),
        "second_chunk_ms": milliseconds(second_chunks(done)),
        "whole_ms": milliseconds([report.wall_s for report in done]),
        "sessions_without_gap": sum(not report.gaps() for report in done),
        "longest_gap_ms": round(1000 * max((gap for report in done for gap in report.gaps()), default=0.0), 1),
        "began_before_text_ended": sum(report.audio_began_before_text_ended for report in done),
    }


def failures(reports: Sequence[SessionReport]) -> list[str]:
    """One sentence for each reason, with how often it came."""
    reasons = Counter(report.error or "no audio" for report in reports if report.error is not None or not report.chunks)
    return [f"{count} of {len(reports)} failed: {reason}" for reason, count in reasons.most_common()]


def rtf_text(mode: str, reports: Sequence[SessionReport], wall_s: float) -> str:
    """The summary of upstream's benchmark (FunAudioLLM/CosyVoice, runtime/triton_trtllm/client_grpc.py at ace7c47).

    Names, units and the number of digits are upstream's: a variance is in seconds squared times 1000; the second chunk's latency counts
    from the first chunk.
    """
    done = succeeded(reports)
    audio_s = sum(report.audio_s for report in done)
    lines = [
        f"Mode: {mode}",
        f"RTF: {wall_s / audio_s if audio_s else float('inf'):.4f}",
        f"total_duration: {audio_s:.3f} seconds",
        f"({audio_s / 3600:.2f} hours)",
        f"processing time: {wall_s:.3f} seconds ({wall_s / 3600:.2f} hours)",
    ]
    whole = [report.wall_s for report in done]
    if not done:
        lines.append("No latency data collected.")
    elif mode == "offline":
        lines += _latencies("latency", whole)
    else:
        lines += ["", "--- Total Request Latency ---", *_latencies("total_request_latency", whole)]
        lines += ["", "--- First Chunk Latency ---", *_latencies("first_chunk_latency", [report.chunks[0].arrived_s for report in done])]
        lines += ["", "--- Second Chunk Latency ---"]
        seconds = second_chunks(done)
        lines += _latencies("second_chunk_latency", seconds) if seconds else ["No second chunk latency data collected."]
    return "\n".join(lines) + "\n"


def _latencies(name: str, seconds: Sequence[float]) -> list[str]:
    return [
        f"{name}_variance: {1000 * float(np.var(seconds)):.2f}",
        *(f"{name}_{rank}_percentile_ms: {1000 * float(np.percentile(seconds, rank)):.2f}" for rank in RANKS),
        f"average_{name}_ms: {1000 * float(np.mean(seconds)):.2f}",
    ]
