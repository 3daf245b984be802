#!/usr/bin/env python3
"""How far off is ``text_position``? Held-out sentences of a trained voice through the real server, against forced alignment.

    python -m training.make --stage prepare                                                    # once: the teacher's packages
    bash run.sh serve &
    python benchmarks/text_positions.py speak --server localhost:8001 --set a b                # -> build/voice/positions
    python benchmarks/text_positions.py judge --model-dir assets/voice --out benchmarks/results/text-positions.json

speak: one session for each sentence, word by word (10 in a second) and all at once. judge: the teacher of the voice says the same, festival
tells when each of its words begins and ends, and time warping finds these words in what the server said (``_teacher_words.py``; its own
error is measured with another teacher and printed). At the end of each chunk but a session's last: characters, words and seconds between
the position and the character that is spoken there; between two words both of them are right.

With --model-dir also what the attention of the language model says, for the same speech tokens: each head's text token with the most
weight, or the mean of all by weight. The head is chosen on set A and reported on set B. Last, what reading one head costs a step of the
language model on this CPU: steps with and without it in turn.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks._attention_positions import AttendingModel, measure_cost
from benchmarks._common import report, table
from benchmarks._teacher_words import Taught, aligned_words, own_error, taught
from benchmarks.voice_quality import pieces_of
from bistream.client.client import BistreamClient
from bistream.rates import REFERENCE_SAMPLE_RATE, SAMPLE_RATE, SAMPLES_PER_TOKEN
from bistream.resample import resample
from training.heldout import sentences
from training.voices import KED, SLT_HTS

KINDS = ("words", "whole")
WORD_RATE = 10.0
STRETCH = 1.15  # of the other teacher
_WORD = re.compile(r"[A-Za-z0-9']+")
_TEACHERS = {"nora": SLT_HTS, "karl": KED}


def speak(options: argparse.Namespace) -> int:
    """OUT/VOICE-SET-KIND: a WAV file for each sentence, and positions.json."""
    client = BistreamClient(options.server)
    for name in options.sets:
        for kind in KINDS:
            folder: Path = options.folder / f"{options.voice}-{name}-{kind}"
            folder.mkdir(parents=True, exist_ok=True)
            rows = []
            for number, text in enumerate(tqdm(sentences(name)[: options.count], desc=folder.name, unit="sentence")):
                chunks = _session(client, options.voice, text, kind, number)
                waveform = np.concatenate([chunk.waveform for chunk in chunks])
                soundfile.write(folder / f"{number:03d}.wav", waveform, SAMPLE_RATE, subtype="PCM_16")
                told = [[chunk.waveform.size, chunk.text_consumed, chunk.text_position] for chunk in chunks]
                rows.append({"text": text, "chunks": told})
            (folder / "positions.json").write_text(json.dumps(rows), encoding="utf-8")
    return 0


def _session(client: BistreamClient, voice: str, text: str, kind: str, seed: int) -> list[Any]:
    if kind == "whole":
        with client.start(speaker_id=voice, seed=seed, text=text, is_end=True) as session:
            return list(session)
    with client.start(speaker_id=voice, seed=seed) as session:
        for piece in pieces_of(text, "words"):
            session.push_text(piece)
            time.sleep(1.0 / WORD_RATE)
        session.end_text()
        return list(session)


@dataclass(frozen=True)
class Sentence:
    """words: (first character, character after the last, begin, end in seconds). ends: of the chunks, in seconds, but the last; told:
    (text_consumed, text_position) there."""

    number: int
    text: str
    seconds: float
    words: list[tuple[int, int, float, float]]
    ends: list[float]
    told: list[tuple[int, int]]

    def spoken_at(self, time_s: float) -> tuple[float, float]:
        """The first and the last character that are right at this time."""
        before = 0.0
        for first, after, begin, end in self.words:
            if time_s < begin:
                return before, float(first)
            if time_s < end:
                place = first + (after - first) * (time_s - begin) / (end - begin)
                return place, place
            before = float(after)
        return before, float(len(self.text))

    def time_of(self, character: float) -> float:
        """When it is spoken."""
        places = [place for first, after, _, _ in self.words for place in (first, after)]
        times = [time for _, _, begin, end in self.words for time in (begin, end)]
        return float(np.interp(character, places, times))

    def errors(self, estimate: Callable[[int], float]) -> Iterator[tuple[float, int, float]]:
        """Of an estimate for each chunk: characters (positive: too far), words between, seconds."""
        for index, time_s in enumerate(self.ends):
            low, high = self.spoken_at(time_s)
            found = estimate(index)
            characters = found - high if found > high else min(0.0, found - low)
            right = min(max(found, low), high)
            words = abs(self._word(found) - self._word(right))
            yield characters, words, abs(self.time_of(found) - self.time_of(right))

    def _word(self, character: float) -> int:
        return sum(first <= character for first, _, _, _ in self.words)


def read_sentences(folder: Path, root: Path, voice: str) -> list[Sentence]:
    """Those whose words the teacher says one by one."""
    rows = json.loads((folder / "positions.json").read_text(encoding="utf-8"))
    found = []
    for number, (row, teacher) in enumerate(zip(rows, taught(root, _TEACHERS[voice], [row["text"] for row in rows]), strict=True)):
        spans = [match.span() for match in _WORD.finditer(row["text"])]
        if len(spans) != len(teacher.words):
            print(f"{folder.name}, sentence {number}: the teacher says {len(teacher.words)} words, not {len(spans)}", file=sys.stderr)
            continue
        found.append(_sentence(folder, number, row, teacher, spans))
    return found


def _sentence(folder: Path, number: int, row: dict[str, Any], teacher: Taught, spans: Sequence[tuple[int, int]]) -> Sentence:
    waveform, _ = soundfile.read(folder / f"{number:03d}.wav", dtype="float32")
    times = aligned_words(teacher, resample(waveform, SAMPLE_RATE, REFERENCE_SAMPLE_RATE))
    words = [(first, after, begin, end) for (first, after), (begin, end) in zip(spans, times, strict=True)]
    ends = (np.cumsum([size for size, _, _ in row["chunks"]]) / SAMPLE_RATE).tolist()
    told = [(consumed, position) for _, consumed, position in row["chunks"]]
    return Sentence(number, row["text"], len(waveform) / SAMPLE_RATE, words, ends[:-1], told[:-1])


def summary(errors: Sequence[tuple[float, int, float]]) -> dict[str, float]:
    characters = np.array([error[0] for error in errors])
    words, seconds = (np.array([error[index] for error in errors], dtype=np.float64) for index in (1, 2))
    size = np.abs(characters)
    return {
        "places": len(errors),
        "bias": round(float(characters.mean()), 2),
        "characters": round(float(size.mean()), 2),
        "characters_90": round(float(np.percentile(size, 90)), 1),
        "characters_99": round(float(np.percentile(size, 99)), 1),
        "words": round(float(words.mean()), 2),
        "right_word_percent": round(100 * float((words == 0).mean()), 1),
        "seconds": round(float(seconds.mean()), 3),
    }


def simple_estimates(found: Sequence[Sentence]) -> dict[str, dict[str, float]]:
    estimates: dict[str, Callable[[Sentence], Callable[[int], float]]] = {
        "text_position": lambda one: lambda index: one.told[index][1],
        "text_consumed": lambda one: lambda index: one.told[index][0],
        "even pace, once the length is known": lambda one: lambda index: len(one.text) * one.ends[index] / one.seconds,
    }
    return {name: summary([error for one in found for error in one.errors(of(one))]) for name, of in estimates.items()}


def _head_errors(model: AttendingModel, found: Sequence[Sentence], kind: str) -> dict[tuple[int, str, bool], list[Any]]:
    """By head, kind of estimate, and whether it never goes back."""
    errors: dict[tuple[int, str, bool], list[Any]] = {}
    for one in tqdm(found, desc=f"attention, {kind}", unit="sentence"):
        tokens = model.tokens(list(pieces_of(one.text, "words")), one.number, kind == "whole")
        assert abs(len(tokens) * SAMPLES_PER_TOKEN / SAMPLE_RATE - one.seconds) < 1e-6, "other speech tokens than the server's"
        attended = model.attended(one.text)
        for way, places in (("most", attended.most), ("mean", attended.mean)):
            for is_monotone in (False, True):
                for head, characters in enumerate(np.maximum.accumulate(places, axis=1) if is_monotone else places):
                    errors.setdefault((head, way, is_monotone), []).extend(one.errors(_at_chunks(characters, one)))
    return errors


def _at_chunks(characters: NDArray[np.float32], one: Sentence) -> Callable[[int], float]:
    """Between what was told and what the last speech token of a chunk attends to."""
    return lambda index: max(one.told[index][0], float(characters[min(len(characters) - 1, round(one.ends[index] * 25) - 1)]))


def judge(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    texts = list(sentences("a"))[:40]
    other = next(name for name in _TEACHERS.values() if name != _TEACHERS[options.voice])
    off = own_error(taught(options.root, _TEACHERS[options.voice], texts), taught(options.root, other, texts, STRETCH))
    results: dict[str, Any] = {
        "alignment of another speaker, seconds off": {
            "mean": round(float(off.mean()), 3), "median": round(float(np.median(off)), 3), "p95": round(float(np.percentile(off, 95)), 3),
        }
    }  # fmt: skip
    found = {
        (name, kind): read_sentences(options.folder / f"{options.voice}-{name}-{kind}", options.root, options.voice)
        for name in options.sets for kind in KINDS
    }  # fmt: skip
    results |= {f"set {name}, {kind}": simple_estimates(of) for (name, kind), of in found.items()}
    if options.model_dir is not None:
        model = AttendingModel(options.model_dir, options.voice)
        try:
            for kind in KINDS:
                results[f"attention, {kind}"] = _best_head(model, found, kind)
        finally:
            model.close()
        results["cost"] = measure_cost(options.model_dir, options.rounds)
    print_results(results)
    config = {"voice": options.voice, "sets": options.sets, "word_rate": WORD_RATE}
    report("text_positions", torch.device("cpu"), config, results, options.out)
    return 0


def _best_head(model: AttendingModel, found: dict[tuple[str, str], list[Sentence]], kind: str) -> dict[str, Any]:
    """Chosen on set A by the mean error in characters."""
    chosen_on, reported_on = (_head_errors(model, found[name, kind], kind) for name in ("a", "b"))
    best = min(chosen_on, key=lambda key: np.mean([abs(error[0]) for error in chosen_on[key]]))
    head, way, is_monotone = best
    name = f"{model.heads[head]}, {way}{', never back' if is_monotone else ''}"
    return {"head": name, "set a": summary(chosen_on[best]), "set b": summary(reported_on[best])}


def print_results(results: dict[str, Any]) -> None:
    columns = ("characters", "characters_90", "characters_99", "bias", "words", "right_word_percent", "seconds", "places")
    rows: list[Sequence[object]] = [("sentences", "estimate", *columns)]
    for name, of in results.items():
        if name.startswith("set "):
            rows += [(name, estimate, *(values[column] for column in columns)) for estimate, values in of.items()]
        elif name.startswith("attention"):
            rows += [(f"{part}, {name}", of["head"], *(of[part][column] for column in columns)) for part in ("set a", "set b")]
        else:
            print(f"{name}: {of}")
    table(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    speaking, judging = commands.add_parser("speak"), commands.add_parser("judge")
    for command in (speaking, judging):
        command.add_argument("--sets", nargs="+", choices=("a", "b"), default=["a", "b"])
        command.add_argument("--voice", choices=sorted(_TEACHERS), default="nora")
        command.add_argument("--folder", type=Path, default=Path("build/voice/positions"))
    speaking.add_argument("--server", default="localhost:8001", metavar="HOST:PORT")
    speaking.add_argument("--count", type=int, default=1000, help="sentences of each set at most")
    judging.add_argument("--root", type=Path, default=Path("build/voice/work/unpacked"), help="the teacher's packages, unpacked")
    judging.add_argument("--model-dir", type=Path, help="of the voice, for what its attention says")
    judging.add_argument("--rounds", type=int, default=10, help="of the cost (default %(default)s)")
    judging.add_argument("--out", help="also write the JSON object here")
    options = parser.parse_args()
    return speak(options) if options.command == "speak" else judge(options)


if __name__ == "__main__":
    sys.exit(main())
