"""First audio of one GPU under all loads of the README's table, with one command: starts the servers, repeats every load, takes medians.

    python benchmarks/first_audio_rounds.py [--family cosyvoice2|cosyvoice3|spark] [--rounds 3] [--no-overload] [--set device=cuda:1 ...]

Loads are ``benchmarks/first_audio.py``'s, a registered voice, callers who keep their connections and begin spread over some time: alone;
closed, each with its next text as soon as the last one has come, short and longer texts; fed, word by word. Overload is an open load of
twice what an H200 makes, at a server with ``admission_load`` 0.9, once. The server starts with empty caches (cold), then with full ones
(warm). Writes first-audio-GPU.json, or cosyvoice3-first-audio-GPU.json, to --out; all that the benchmark said is in --work. It needs no
package index, and finds the server as serve.py does (TRITON_SERVER, TRITON_BACKENDS). ``--size tiny`` runs on a CPU. Another tier:
``--set kernels=plain``. Language model and speech on two GPUs: ``--set device=cuda:1 --set llm_bistream.device=cuda:0``.
A smaller card, whose server chooses its limits: ``--card-gb 24 --max-sessions 0 --most-callers 64 --no-overload``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import first_audio
from benchmarks._common import ROOT, free_port, gpu_line, report, table
from benchmarks._server import SPEAKER, Checkpoint, Server, make_repository, register_voice
from bistream.contract.fields import COSYVOICE2_BISTREAM
from bistream.contract.room import room_of
from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.families.spark import SPARK
from bistream.keeper.repository import read_parameters

SHORT = "Hello to you all"  # 5.6 s of audio with random weights, which say one token of text in 20 of speech
LONGER = "The quick brown fox jumps over a lazy dog or"  # 25.6 s
FED = f"{LONGER} or and"
SENTENCES = f"{LONGER} so. {LONGER} and. {LONGER} but."
FED_WAIT_MS = 200.0  # in which the words of the first block of text come
MOST_CALLERS = 256
COUNTS = ("sessions", "sessions_with_gap", "refused", "failed")


@dataclass(frozen=True)
class Series:
    """One call of ``first_audio.py``. callers: of its closed loops."""

    name: str
    text: str
    callers: tuple[int, ...]
    options: tuple[str, ...]


SERIES = {
    COSYVOICE2.name: (
        Series("alone", SHORT, (1,), ("--requests", "20")),
        Series("closed", SHORT, (16, 64, 128, 256), ("--requests", "5", "--spread-s", "1.2")),
        Series("longer", LONGER, (16, 64, 128), ("--requests", "2", "--spread-s", "2")),
        Series("fed", FED, (256,), ("--requests", "1", "--spread-s", "10", "--texts", "pieces", "--text-rate", "10")),
    ),
    COSYVOICE3.name: (
        Series("alone", SHORT, (1,), ("--requests", "20")),
        Series("closed", SHORT, (16, 64), ("--requests", "4", "--spread-s", "1.2")),
        Series("fed", SHORT, (256,), ("--requests", "1", "--spread-s", "6", "--texts", "pieces", "--text-rate", "10")),
    ),
    SPARK.name: (  # a sentence speaks once it is whole, so that of fed texts the first audio has a sentence's wait in it
        Series("alone", SHORT, (1,), ("--requests", "20")),
        Series("closed", SHORT, (16, 64), ("--requests", "4", "--spread-s", "1.2")),
        Series("longer", LONGER, (128,), ("--requests", "1", "--spread-s", "12")),
        Series("fed", SENTENCES, (128,), ("--requests", "1", "--spread-s", "6", "--texts", "pieces", "--text-rate", "10")),
    ),
}


class Bench:
    """The server to measure, and where everything is kept."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work = options.work.resolve() / options.family
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        caches = {name: str(self.work / "caches" / name.lower()) for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.environment = {**os.environ, "PYTHONPATH": path, **caches}
        self.checkpoint = Checkpoint(options.family, options.size, options.model_dir, self.work)
        limit = {"max_sessions": str(options.max_sessions)} if options.max_sessions else {}
        self.settings = {**limit, **dict(setting.split("=", 1) for setting in options.set)}
        self.port = free_port()
        self.room: str | None = None  # of the last server, in its words

    def server(self, name: str, **settings: str) -> Server:
        """Not started yet."""
        voices = self.work / "voices"
        repository = make_repository(self.checkpoint, self.environment, {"voices_dir": str(voices), **self.settings, **settings})
        self.room = room_of(read_parameters(repository)[COSYVOICE2_BISTREAM.name])
        print(f"{name} {self.room}", flush=True)
        if not voices.exists():
            register_voice(self.checkpoint.path, voices, self.environment)
        more = ("--health-port", str(self.port), "--probe-interval-s", "0", "--state-dir", str(self.work / "state"))
        return Server(repository, self.work, self.environment, name, more)

    def measure(self, server: Server, name: str, text: str, *loads: str) -> list[dict[str, Any]]:
        """The runs of ``first_audio.py``, whose tables go to a log. Raises ``RuntimeError``."""
        out = self.work / f"{name}.json"
        out.unlink(missing_ok=True)
        words = ["--server", server.grpc, "--metrics", f"http://localhost:{self.port}/metrics", "--speaker-id", SPEAKER, "--text", text]
        with (self.work / f"{name}.log").open("w", encoding="utf-8") as log, contextlib.redirect_stdout(log):
            code = first_audio.main([*words, "--out", str(out), *loads])
        if not out.exists():  # with it, sessions failed, which is a result
            raise RuntimeError(f"{name}: first_audio.py ended with {code} and no result; the line above says why")
        runs: list[dict[str, Any]] = json.loads(out.read_text())["metrics"]["runs"]
        for one in runs:
            client = one["first_audio_client_ms"]
            print(f"{name}, {one['load']}: {client}, {one['sessions_with_gap']} with a gap, {one['refused']} refused", flush=True)
        return runs


def rounds(bench: Bench, server: Server) -> Iterator[tuple[str, dict[str, Any]]]:
    """(series and callers, a run), every round."""
    for number in range(bench.options.rounds):
        for series in SERIES[bench.options.family]:
            callers = tuple(dict.fromkeys(min(count, bench.options.most_callers) for count in series.callers))
            loads = ("--closed", *map(str, callers), *series.options)
            for count, found in zip(callers, bench.measure(server, f"{series.name}-{number + 1}", series.text, *loads), strict=True):
                yield f"{series.name} {count}", found


def median_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of p50 and p99 of the first audio, and of audio per second; counts of each run."""
    keys = [key for key in ("p50", "p99") if all(key in one["first_audio_client_ms"] for one in runs)]
    return {
        **{key: round(statistics.median(one["first_audio_client_ms"][key] for one in runs), 1) for key in keys},
        "audio_s_per_s": round(statistics.median(one["audio_s_per_s"] for one in runs), 1),
        **{key: [one[key] for one in runs] for key in COUNTS},
    }


def overload(bench: Bench) -> dict[str, Any]:
    """Twice what an H200 makes: whom the server admits, and what those hear."""
    with bench.server("server-overload", admission_load="0.9") as server:
        per_s, seconds = ("2", "3") if bench.options.size == "tiny" else ("40", "25")
        (found,) = bench.measure(server, "overload", LONGER, "--open", per_s, "--seconds", seconds)
    return {
        "offered": found["sessions"], "admitted": found["sessions"] - found["refused"], "failed": found["failed"],
        "admitted_ms": found["first_audio_client_ms"], "gaps": found["sessions_with_gap"],
        "refused": found["refused"], "refused_ms": found["refused_ms"], "audio_s_per_s": found["audio_s_per_s"],
    }  # fmt: skip


def measure(bench: Bench) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {}
    with bench.server("server-cold") as server:
        starts = {"cold": server.startup_s}
        for name, one in rounds(bench, server):
            found.setdefault(name, []).append(one)
    with bench.server("server-warm") as server:
        starts["warm"] = server.startup_s
    print(f"starts: {starts} s", flush=True)
    metrics: dict[str, Any] = {"startup_s": starts, "room": bench.room}
    for name, runs in found.items():
        metrics[name] = median_of(runs)
        metrics[name]["stages_ms"] = {stage: values["mean"] for stage, values in runs[-1]["stages_ms"].items()}
        if name.startswith("fed ") and "p50" in metrics[name]:
            metrics[name]["beyond_text_ms"] = {key: round(metrics[name][key] - FED_WAIT_MS, 1) for key in ("p50", "p99")}
    if not bench.options.no_overload:
        metrics["overload"] = overload(bench)
    return metrics


@contextlib.contextmanager
def smaller_card(gb: float | None) -> Iterator[None]:
    """Hold the memory of the GPU beyond ``gb`` 10^9 bytes. Raises ``RuntimeError`` without a GPU or where less is free."""
    if gb is None:
        yield
        return
    import torch  # noqa: PLC0415

    torch.zeros(1, device="cuda")  # what the first call takes is held, too
    rest = torch.cuda.mem_get_info()[0] - round(gb * 1e9)
    held = torch.empty(rest, dtype=torch.uint8, device="cuda")
    print(f"{held.numel() / 1e9:.1f} GB of the GPU are held", flush=True)
    yield
    del held


def short_name(device: str) -> str:
    """A GPU's name for file names: "NVIDIA H100 80GB HBM3" is h100, "NVIDIA GeForce RTX 4090" rtx4090."""
    words = [word for word in re.split(r"[\s-]+", device) if word not in ("NVIDIA", "GeForce", "Tesla", "Quadro")]
    for count, word in enumerate(words, start=1):
        if any(character.isdigit() for character in word):
            return "".join(words[:count]).lower()
    return "".join(words).lower() or "gpu"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(SERIES), default=COSYVOICE2.name)
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--rounds", type=int, default=3, help="of all loads (default %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, as for make_model_repo.py")
    parser.add_argument("--no-overload", action="store_true", help="leave the overloaded server out")
    parser.add_argument("--max-sessions", type=int, default=400, help="of the server (default %(default)s); 0: as the server chooses them")
    parser.add_argument("--most-callers", type=int, help="of every load (default: all of the table's, with the size tiny 2)")
    parser.add_argument("--card-gb", type=float, help="leave so much of the GPU's memory free, in 10^9 bytes, and hold the rest")
    parser.add_argument("--model-dir", type=Path, help="checkpoint; default: random weights, made under --work")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "first_audio", help="logs, checkpoint (default build/first_audio)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="default benchmarks/results")
    options = parser.parse_args()
    options.most_callers = options.most_callers or (2 if options.size == "tiny" else MOST_CALLERS)
    with smaller_card(options.card_gb):
        metrics = measure(Bench(options))
    loads = {name: one for name, one in metrics.items() if "sessions_with_gap" in one}
    columns = ("p50", "p99", "audio_s_per_s", "sessions_with_gap", "refused")
    table([("load", *columns), *((name, *(one.get(column, "") for column in columns)) for name, one in loads.items())])
    config = {"family": options.family, "size": options.size, "rounds": options.rounds}
    config |= {"max_sessions": options.max_sessions, "card_gb": options.card_gb, "settings": options.set}
    name = "first-audio" if options.family == COSYVOICE2.name else f"{options.family}-first-audio"
    path = options.out / f"{name}-{short_name(gpu_line('name') or 'cpu')}.json"
    report("first_audio_rounds", config, metrics, path)
    return int(any(sum(one["failed"]) for one in loads.values()))


if __name__ == "__main__":
    sys.exit(main())
