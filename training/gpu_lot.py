"""One piece of training on a GPU host that was given the working tree alone: no network, nothing to install, at most ten minutes.

What is there already decides what comes next: corpus, then speech tokenizer beside speaker encoder, then codes, then language model,
flow and vocoder side by side (each is bound by kernel launches, so they share one GPU well, through MPS where the host has it). With
build/voice/carried/utterances*.npz, of a corpus that was made elsewhere, the language model begins at once. Results go to ``--out`` within
its limits: a few files of at most 16 MiB. Put them into ``build/voice/travel`` before the next lot.

The tree must hold build/voice/carried (stage prepare) and, from the second lot on, build/voice/travel.
Example:  python3 training/gpu_lot.py --seconds 560 --out "$OUT"
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.keeper.gpu_sharing import shared_gpu

ROOT = Path(__file__).resolve().parents[1]
LARGEST_FILE = 16 * 2**20
MOST_FILES = 8
_PACKING_S = 15.0  # copying results, and the start of a stage that has no time left
_SHORTEST_STAGE_S = 25.0
ORDER: tuple[tuple[str, ...], ...] = (("corpus",), ("tokenizer", "speaker"), ("codes",), ("language_model", "flow", "vocoder"))
TRAINED = ("tokenizer", "speaker", "language_model", "flow", "vocoder")


class Lot:
    def __init__(self, arguments: argparse.Namespace, options: Sequence[str]) -> None:
        self.folder: Path = arguments.folder
        self.only: list[str] = arguments.only
        self.out: Path = arguments.out
        self.began = time.monotonic()
        self.end = self.began + arguments.seconds - _PACKING_S
        self.options = options

    def run(self) -> int:
        """The exit status of the worst stage; results are packed in any case."""
        try:
            return self._stages()
        finally:
            self._pack()

    def _stages(self) -> int:
        wanted = [name for name in TRAINED if not self.only or name in self.only]
        early = self._start(["language_model"]) if "language_model" in wanted and self.has_carried_utterances else {}
        wanted = [name for name in wanted if name not in early]
        statuses = dict[str, int]()
        for group in ORDER if wanted else ():
            names = [name for name in group if name in wanted or name not in TRAINED]
            if self.end - time.monotonic() < _SHORTEST_STAGE_S or any(status != 0 for status in statuses.values()):
                break
            statuses |= self._wait(self._start(names))
        statuses |= self._wait(early)
        if bad := [f"{name} ended with {status}" for name, status in statuses.items() if status not in (0, 3)]:
            print("; ".join(bad), flush=True)
            return 1
        if left := [name for name in [*wanted, *early] if statuses.get(name, 3) == 3]:
            print(f"to be continued: {left}", flush=True)
        else:
            print("all stages are complete; next: export, on a host with the packages of requirements/training.txt", flush=True)
        return 0

    @property
    def has_carried_utterances(self) -> bool:
        """With them the language model needs no corpus on this machine."""
        return any((self.folder / "carried").glob("utterances*.npz"))

    def _start(self, names: Sequence[str]) -> dict[str, subprocess.Popen[bytes]]:
        """Stages side by side, each with a log of its own."""
        running = {}
        for name in names:
            if name == "codes" and self._has_codes():
                continue
            # A point of time, not a span: a stage's imports and its corpus take part of it.
            command = [sys.executable, "training/make.py", "--stage", name, "--until", f"{self.end:.1f}", "--folder", str(self.folder)]
            with (self.folder / f"{name}.log").open("ab") as log:
                running[name] = subprocess.Popen([*command, *self.options], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        return running

    def _wait(self, running: dict[str, subprocess.Popen[bytes]]) -> dict[str, int]:
        """Their exit statuses; the end of each log is printed."""
        statuses = {}
        for name, process in running.items():
            try:
                statuses[name] = process.wait(max(1.0, self.end - time.monotonic() + _PACKING_S / 2))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                statuses[name] = 3
            lines = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").replace("\r", "\n").splitlines()
            print(f"== {name}: {statuses[name]} after {time.monotonic() - self.began:.0f} s", *lines[-3:], sep="\n   ", flush=True)
        return statuses

    def _has_codes(self) -> bool:
        """Codes that are not older than the tokenizer they were made with."""
        codes, tokenizer = self.folder / "work" / "codes.npy", self.folder / "work" / "local" / "tokenizer.full.pt"
        return codes.exists() and (not tokenizer.exists() or codes.stat().st_mtime > tokenizer.stat().st_mtime)

    def _pack(self) -> None:
        """Checkpoints and curves, as few files as fit."""
        self.out.mkdir(parents=True, exist_ok=True)
        with tarfile.open(self.folder / "curves_and_logs.tar.gz", "w:gz") as tar:
            for path in [*sorted((self.folder / "work" / "local").glob("*.csv")), *sorted(self.folder.glob("*.log"))]:
                tar.add(path, path.name)
        paths = [*sorted((self.folder / "travel").glob("*.pt")), self.folder / "curves_and_logs.tar.gz"]
        for path in paths[:MOST_FILES]:
            size = path.stat().st_size
            if size > LARGEST_FILE:
                print(f"{path.name} has {size / 2**20:.1f} MiB and stays here: more than {LARGEST_FILE / 2**20:.0f}", flush=True)
                continue
            shutil.copy(path, self.out / path.name)
            print(f"{path.name}: {size / 2**20:.2f} MiB", flush=True)


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=560.0, help="all of it, results packed (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--folder", type=Path, default=Path("build/voice"))
    parser.add_argument("--only", nargs="*", default=[], help="of stages that run side by side, these alone, e.g. vocoder")
    return parser.parse_known_args()


def main() -> int:
    arguments, options = _arguments()  # further options go to make.py, e.g. --size smoke --device cpu
    arguments.folder = arguments.folder.resolve()
    with shared_gpu() as shares:
        print(f"stages run side by side {'through MPS' if shares else 'in turns'}", flush=True)
        return Lot(arguments, options).run()


if __name__ == "__main__":
    sys.exit(main())
