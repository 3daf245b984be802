#!/usr/bin/env python3
"""Compiles the GPU code of all networks ahead of the first start: each stage in a process of its own, with a line for each that is done.

    compile_kernels.py --model-dir CosyVoice2-0.5B
    compile_kernels.py --model-dir CosyVoice2-0.5B --workers 2 --set max_sessions=128

A server does without: at its first start it compiles its own kernels in many processes (``bistream/gpu/compile_ahead.py``). Networks in
recorded PyTorch graphs are compiled one function after the other; there this program saves time, because language model, flow and vocoder
are compiled at once, the language model from three numbers of rows on. What they compiled stays in the compilers' caches
(TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR; the server must see the same ones, as the same user). The entries of a cache are named after
the source, the compiler and the GPU, so nothing can be used where it does not fit: at worst a kernel is compiled again. The GPU must hold
weights and state once for each worker.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from scripts.fill_template import TemplateError, parse_settings

LANGUAGE_MODEL, FLOW, VOCODER = "language_model", "flow", "vocoder"
# A runner prepares its largest number of rows first. Smaller ones begin further down, and find the others' kernels when they meet.
SHARES_OF_ROWS = (1, 4, 16)
MOST_WORKERS = 8


@dataclass(frozen=True)
class Outcome:
    """Of one part. error: the last line that a failed process wrote; empty for success."""

    job: str
    seconds: float
    error: str


def jobs_of(config: RuntimeConfig) -> list[str]:
    """``flow``, ``vocoder``, ``language_model:ROWS``; those that take longest first."""
    rows = sorted({max(1, config.max_rows // share) for share in SHARES_OF_ROWS}, reverse=True)
    return [FLOW, VOCODER, *(f"{LANGUAGE_MODEL}:{count}" for count in rows)]


def run_all(jobs: Sequence[str], command: Callable[[str], Sequence[str]], workers: int) -> Iterator[Outcome]:
    """Each job in a process of its own, at most ``workers`` at a time; yields as they end. One that fails stops no other."""
    with ThreadPoolExecutor(workers) as pool:
        for future in as_completed([pool.submit(_run, job, command(job)) for job in jobs]):
            yield future.result()


def _run(job: str, command: Sequence[str]) -> Outcome:
    began = time.monotonic()
    try:
        finished = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
        lines = finished.stderr.strip().splitlines()
        error = "" if finished.returncode == 0 else (lines[-1] if lines else f"exit code {finished.returncode}")
    except OSError as failure:
        error = str(failure)
    return Outcome(job, time.monotonic() - began, error)


def compile_job(job: str, config: RuntimeConfig) -> None:
    """In a worker: load one stage, which compiles and records all it needs. Raises ``BistreamError``."""
    from bistream.checkpoint import read_config  # noqa: PLC0415  (the stages load torch)

    stage, _, number = job.partition(":")
    checkpoint = read_config(config.model_dir)
    if stage == LANGUAGE_MODEL:
        from bistream.text2token.factory import make_engine  # noqa: PLC0415

        engine, _tiers = make_engine(dataclasses.replace(config, max_rows=int(number), kv_cache_tokens=config.max_session_tokens))
        engine.close()
    elif stage == FLOW:
        from bistream.token2mel.stage import FlowStage  # noqa: PLC0415

        FlowStage(config, checkpoint)
    else:
        from bistream.mel2wav.factory import make_vocoder  # noqa: PLC0415

        make_vocoder(config, checkpoint)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", required=True)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="parameters as of the server")
    workers = min(MOST_WORKERS, os.cpu_count() or 1)
    parser.add_argument("--workers", type=int, default=workers, help="processes at a time (default here: %(default)s)")
    parser.add_argument("--job", help=argparse.SUPPRESS)  # this process is a worker
    options = parser.parse_args(arguments)
    if options.workers < 1:
        parser.error("--workers must be 1 or more")
    try:
        values = {**parse_settings(options.settings), "model_dir": str(Path(options.model_dir).resolve())}
        config = RuntimeConfig.from_strings(values)
        if options.job:
            compile_job(options.job, config)
            return 0
    except (BistreamError, TemplateError) as error:
        print(f"compile_kernels.py: {error}", file=sys.stderr)
        return 1
    began, jobs, failed = time.monotonic(), jobs_of(config), 0
    words = [sys.executable, __file__, "--model-dir", options.model_dir, *(word for item in options.settings for word in ("--set", item))]
    for done, outcome in enumerate(run_all(jobs, lambda job: [*words, "--job", job], options.workers), start=1):
        failed += bool(outcome.error)
        result = f"failed: {outcome.error}" if outcome.error else f"{outcome.seconds:.0f} s"
        print(f"{done} of {len(jobs)}, {time.monotonic() - began:.0f} s: {outcome.job} ({result})", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
