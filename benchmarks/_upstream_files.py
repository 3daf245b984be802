"""The summary files of upstream's benchmark (FunAudioLLM/CosyVoice, runtime/triton_trtllm/client_grpc.py at ace7c47), for programs that
read them: ``rtf-NAME.txt``, ``stats_summary-NAME.txt`` and ``model_config-NAME.json``. Pure but for ``write_files``.

Names, units and the number of digits are upstream's: a variance is in seconds squared times 1000; the second chunk's latency counts from
the first chunk. Statistics are those of the server during the measurement, of the models that it shows to clients.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._summary import RANKS, second_chunks, succeeded
from bistream.client.report import SessionReport

Statistics = Mapping[str, Any]  # of tritonclient, as JSON: 64-bit integers are text, zeros are left out
_STAGES = {"infer": "compute_infer", "input": "compute_input", "output": "compute_output"}


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


def statistics_text(before: Statistics, after: Statistics) -> str:
    """What the models did between two answers of ``get_inference_statistics``; a model that did nothing yet is left out."""
    earlier = {model["name"]: model for model in before.get("model_stats", [])}
    lines: list[str] = []
    for model in after.get("model_stats", []):
        if "last_inference" not in model:
            continue
        old = earlier.get(model["name"], {})
        now, then = model.get("inference_stats", {}), old.get("inference_stats", {})
        names = {"queue time": "queue", **{f"compute {name} time": key for name, key in _STAGES.items()}}
        times = (f"{name} {_number(now, key, 'ns') / 1e9 - _number(then, key, 'ns') / 1e9:<5.2f} s" for name, key in names.items())
        lines += [f"model name is {model['name']} ", ", ".join(times) + " "]
        old_batches = {_size(batch): batch for batch in old.get("batch_stats", [])}
        for batch in model.get("batch_stats", []):
            lines += _batch_lines(batch, old_batches.get(_size(batch), {}))
    return "".join(f"{line}\n" for line in lines)


def _batch_lines(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    size = _size(now)
    count = _number(now, "compute_infer", "count") - _number(then, "compute_infer", "count")
    if not count:
        return []
    ms = {name: (_number(now, key, "ns") - _number(then, key, "ns")) / 1e6 for name, key in _STAGES.items()}
    infer = f"{ms['infer']:<9.2f}"
    ends = [f"{name} {ms[name]:<9.2f} ms, avg {ms[name] / count:.2f} ms" for name in ("input", "output")]
    return [
        f"execuate inference with batch_size {size:<2} total {count:<5} times, total_infer_time {infer} ms, "
        f"avg_infer_time {infer}/{count:<5}={ms['infer'] / count:.2f} ms, "
        f"avg_infer_time_per_sample {infer}/{count:<5}/{size}={ms['infer'] / count / size:.2f} ms ",
        ", ".join(ends) + " ",
    ]


def _size(batch: Mapping[str, Any]) -> int:
    return int(batch.get("batch_size", 1))


def _number(values: Mapping[str, Any], key: str, field: str) -> int:
    return int(values.get(key, {}).get(field, 0))


def write_files(folder: Path, name: str, rtf: str, statistics: str, config: Mapping[str, Any]) -> None:
    (folder / f"rtf-{name}.txt").write_text(rtf, encoding="utf-8")
    (folder / f"stats_summary-{name}.txt").write_text(statistics, encoding="utf-8")
    (folder / f"model_config-{name}.json").write_text(json.dumps(config, indent=4), encoding="utf-8")
