"""The summary of upstream's benchmark (FunAudioLLM/CosyVoice, runtime/triton_trtllm/client_grpc.py at ace7c47), for programs that read it.

Names, units and the number of digits are upstream's: a variance is in seconds squared times 1000; the second chunk's latency counts from
the first chunk. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._summary import RANKS, second_chunks, succeeded
from bistream.client.report import SessionReport


def rtf_text(mode: str, reports: Sequence[SessionReport], wall_s: float) -> str:
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
