"""Measures one tier on one GPU with one command: language model, token2wav and the whole server, on random weights.

    python benchmarks/measure.py --kernels auto|graphs [--quick] [--parts server,lm,token2wav] [--callers 1 64 256 576]
    python benchmarks/measure.py --family cosyvoice3

Runs benchmarks/lm.py, benchmarks/token2wav.py, and benchmarks/sessions.py against scripts/serve.py, needs no package index, and finds
the server as serve.py does (TRITON_SERVER, TRITON_BACKENDS). The server first starts with empty caches of compiled kernels (cold),
then with full ones (warm); the other parts run after it, so their start-up is warm. Writes lm-, token2wav- and
sessions-GPU.json to --out, or one file graphs-GPU.json if --kernels is graphs: the same metrics, by part. Logs and caches are in
--work. The last lines are a short table; exit code 1 when a part failed. --quick: about five minutes, with fewer repeats and without
Hugging Face, the naive form and sustained load. --size tiny runs on a CPU.

With --family cosyvoice3 one file, cosyvoice3-GPU.json, has it all: first audio of a caller alone and of 64 in closed loop, with a voice
that the server knows; 256 callers at the pace of text; of token2wav the hops, the state's bytes per second of audio, and the way of the
reference (the whole prefix in every hop, one session at a time).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import ROOT, describe, hardware, table
from benchmarks._server import ServerPlan, gpu_line, measure_server
from bistream.family import COSYVOICE2, COSYVOICE3

PARTS = ("server", "lm", "token2wav")
PARTS3 = ("server", "token2wav")  # the language model differs in a few rows only
CLOSED_REQUESTS = {"all": 10, "quick": 3, "tiny": 1}  # texts that a caller in closed loop sends: random weights say 17.6 s each
CALLERS: dict[str, dict[str, list[int]]] = {
    COSYVOICE2.name: {"all": [1, 64, 128, 256, 576], "quick": [1, 64, 256], "closed": []},
    COSYVOICE3.name: {"all": [256], "quick": [256], "closed": [1, 64]},
}
QUICK = {
    "lm": ["--no-baseline", "--steps", "50", "--seconds", "4"],
    "token2wav": ["--parts", "hops,growth,quality"],
}
SIZES = {"full": {"lm": "full", "token2wav": "full"}, "tiny": {"lm": "small", "token2wav": "tiny"}}
TINY = {"lm": ["--rows", "1", "4", "--steps", "5", "--sessions", "2", "--seconds", "1"], "token2wav": []}


def short_name(device: str) -> str:
    """A GPU's name for file names: "NVIDIA H100 80GB HBM3" is h100, "NVIDIA GeForce RTX 4090" rtx4090."""
    words = [word for word in re.split(r"[\s-]+", device) if word not in ("NVIDIA", "GeForce", "Tesla", "Quadro")]
    for count, word in enumerate(words, start=1):
        if any(character.isdigit() for character in word):
            return "".join(words[:count]).lower()
    return "".join(words).lower() or "gpu"


def benchmark(part: str, options: argparse.Namespace, work: Path, environment: dict[str, str]) -> dict[str, Any]:
    """The result of benchmarks/PART.py. Raises ``RuntimeError`` with the end of its log."""
    out, log = work / f"{part}.json", work / f"{part}.log"
    command = [sys.executable, f"benchmarks/{part}.py", "--size", SIZES[options.size][part], "--kernels", options.kernels]
    if part == "token2wav":
        command += ["--family", options.family]
    command += [*(QUICK[part] if options.quick else []), *(TINY[part] if options.size == "tiny" else []), "--out", str(out)]
    with log.open("w") as stream:
        code = subprocess.run(command, cwd=ROOT, env=environment, stdout=stream, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        raise RuntimeError("\n".join([f"{shlex.join(command)} ended with {code}:", *log.read_text().splitlines()[-15:]]))
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def server(options: argparse.Namespace, work: Path, environment: dict[str, str]) -> dict[str, Any]:
    plan = ServerPlan(
        kernels=options.kernels,
        size=options.size,
        model_dir=options.model_dir,
        callers=tuple(options.callers),
        max_sessions=options.max_sessions,
        family=options.family,
        closed=tuple(options.closed),
        closed_requests=CLOSED_REQUESTS["tiny" if options.size == "tiny" else "quick" if options.quick else "all"],
    )
    return measure_server(plan, work, environment)


def write(results: dict[str, dict[str, Any]], options: argparse.Namespace, gpu: str) -> list[Path]:
    """One file per part, or one for all parts of CosyVoice3 or with the tier ``graphs``. Returns the paths."""
    options.out.mkdir(parents=True, exist_ok=True)
    files = {f"{name}-{gpu}.json": result for name, result in results.items()}
    together = options.family if options.family != COSYVOICE2.name else "graphs"
    if options.family != COSYVOICE2.name or options.kernels == "graphs":
        first = next(iter(results.values()))
        parts = {key: {name: result[key] for name, result in results.items()} for key in ("command", "config", "metrics")}
        files = {f"{together}-{gpu}.json": {**first, "name": together, **parts}}
    for name, result in files.items():
        (options.out / name).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return [options.out / name for name in files]


def summary(results: dict[str, dict[str, Any]]) -> list[tuple[str, object]]:
    """The key figures."""
    metrics = {name: result["metrics"] for name, result in results.items()}
    rows: list[tuple[str, object]] = [("measured", "value")]
    for name, keys in (("lm", ("step_ms",)), ("token2wav", ("first_hop_ms", "steady_hop_ms"))):
        for key in keys:
            rows += [(f"{key}, {count}", value) for count, value in metrics.get(name, {}).get(key, {}).items()]
    for name, key in (
        ("lm", "append_to_first_token_ms"),
        ("token2wav", "mel_snr_db_vs_fp32"),
        ("token2wav", "audio_snr_db_vs_fp32"),
        ("lm", "startup_s"),
        ("token2wav", "startup_s"),
        ("lm", "gpu_memory_gb"),
        ("token2wav", "gpu_memory_gb"),
        ("sessions", "startup_s"),
        ("sessions", "gpu_memory_gb"),
    ):
        if key in metrics.get(name, {}):
            rows.append((f"{name}: {key}", metrics[name][key]))
    for run in metrics.get("sessions", {}).get("runs", []):
        first = run["time_to_first_audio_ms"]
        said = f"first audio p50 {first.get('p50')} p99 {first.get('p99')} ms, {run['failed']} failed"
        rows.append(
            (f"{run['num_tasks']} callers, {run['load']}", f"{said}, {run['sessions_without_gap']} without gap, {run['audio_s_per_s']} s/s")
        )
    return rows


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", choices=["auto", "graphs", "plain"], default="auto", help="which tier computes")
    parser.add_argument("--size", choices=sorted(SIZES), default="full")
    parser.add_argument("--quick", action="store_true", help="about five minutes for a tier")
    parser.add_argument("--family", choices=[COSYVOICE2.name, COSYVOICE3.name], default=COSYVOICE2.name)
    parser.add_argument("--parts", help=f"separated by commas (default {','.join(PARTS)}, of CosyVoice3 {','.join(PARTS3)})")
    parser.add_argument("--callers", type=int, nargs="+", help="numbers of callers of the server")
    parser.add_argument("--closed", type=int, nargs="+", help="numbers of callers in closed loop (default 1 64 of CosyVoice3, else none)")
    parser.add_argument("--max-sessions", type=int, default=800, help="of the server (default %(default)s)")
    parser.add_argument("--model-dir", type=Path, help="checkpoint of the server; default: random weights, made under --work")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "measure", help="logs, checkpoint, caches (default build/measure)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="default benchmarks/results")
    options = parser.parse_args(arguments)
    is_newer = options.family != COSYVOICE2.name
    options.parts = options.parts.split(",") if options.parts else list(PARTS3 if is_newer else PARTS)
    if set(options.parts) - set(PARTS):
        parser.error(f"--parts takes {', '.join(PARTS)}")
    is_tiny, usual = options.size == "tiny", CALLERS[options.family]
    options.callers = options.callers or ([1, 2] if is_tiny else usual["quick" if options.quick else "all"])
    options.closed = options.closed or ([1, 2] if is_newer and is_tiny else usual["closed"])
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    work = options.work.resolve() / options.kernels
    caches = work / "caches"
    shutil.rmtree(caches, ignore_errors=True)
    caches.mkdir(parents=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
    }
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "server": lambda: server(options, work, environment),
        "lm": lambda: benchmark("lm", options, work, environment),
        "token2wav": lambda: benchmark("token2wav", options, work, environment),
    }
    name = gpu_line("name") or "cpu"
    host = ", ".join([*([name] if name != "cpu" else []), hardware(torch.device("cpu"))])
    results: dict[str, dict[str, Any]] = {}
    failed = False
    for part in [part for part in PARTS if part in options.parts]:
        print(f"== {part}", flush=True)
        try:
            result = measures[part]()
        except RuntimeError as error:
            failed = True
            print(error, file=sys.stderr, flush=True)
            continue
        results[result["name"]] = result if "commit" in result else describe(**result, hardware_name=host)
    if results:
        for path in write(results, options, short_name(name)):
            print(f"wrote {path}")
        table(summary(results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
