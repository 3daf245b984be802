#!/usr/bin/env python3
"""How large the step of pitch and energy is where one turn ends and the next one begins, and what the words of the next one become.

Every pair of neighbouring sentences (``bistream/evaluation/sentences/paragraphs.jsonl``) is spoken as one utterance; and, with the whole
text at once and word by word, as two turns that know nothing of each other, and as two turns of which the second continues the first. In
this process, on a processor: what is heard does not depend on the load.

Pitch: the best lag of the normalised autocorrelation of frames of 40 ms every 10 ms, 60 to 400 Hz; frames below 0.5, or 25 dB below the
loudest one, have none. A step is the median of the first 0.4 s of pitch in the second sentence over that of the last 0.4 s in the first, in
semitones; of energy, the difference of their mean levels in dB. The place between the sentences of one utterance is the longest pause near
the share of the characters. A turn in pieces whose earlier one has no room in its prompt is the same as alone, sample by sample.

    python -m benchmarks.continues --judges-python build/judges/bin/python --out benchmarks/results/continues-cpu.json
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from benchmarks._common import ROOT, report
from bistream.client.say import split_pieces
from bistream.config import RuntimeConfig
from bistream.evaluation.judge_process import JudgeChoice, JudgeProcess
from bistream.evaluation.texts import compare
from bistream.local import LocalPipeline, VoiceChoice
from bistream.types import FloatArray, GenerationOptions

SENTENCES = ROOT / "bistream/evaluation/sentences/paragraphs.jsonl"
FRAME_S, HOP_S, EDGE_S = 0.04, 0.01, 0.4
LOWEST_HZ, HIGHEST_HZ = 60.0, 400.0
VOICED, QUIET_DB = 0.5, -25.0
LAYOUTS = ("whole", "pieces")
ONE = "one utterance"


def pairs(count: int) -> list[tuple[str, str]]:
    """Neighbouring sentences, two and two."""
    found: list[tuple[str, str]] = []
    for line in SENTENCES.read_text(encoding="utf-8").splitlines():
        sentences = re.split(r"(?<=[.!?]) ", json.loads(line)["text"])
        found += zip(sentences[::2], sentences[1::2], strict=False)
    return found[:count]


def frames_of(waveform: FloatArray, rate: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pitch in Hz (0: none) and level in dB of every frame."""
    size, hop = round(FRAME_S * rate), round(HOP_S * rate)
    windows = np.lib.stride_tricks.sliding_window_view(waveform.astype(np.float64), size)[::hop]
    windows = windows - windows.mean(1, keepdims=True)
    spectrum = np.fft.rfft(windows, 2 * size)
    correlation = np.fft.irfft(np.abs(spectrum) ** 2)[:, :size]
    lags = np.arange(round(rate / HIGHEST_HZ), round(rate / LOWEST_HZ))
    energy = np.cumsum(np.pad(windows**2, ((0, 0), (1, 0))), axis=1)
    shared = np.sqrt(energy[:, size - lags] * (energy[:, -1:] - energy[:, lags]))  # of what overlaps at each lag
    scores = correlation[:, lags] / (shared + 1e-12)
    # The shortest lag that is nearly the best: twice a period correlates as well.
    best = np.argmax(scores >= 0.9 * scores.max(1, keepdims=True), axis=1)
    best = best + np.array([np.argmax(row[at : at + lags[at] // 8]) for row, at in zip(scores, best, strict=True)])
    levels = 10 * np.log10(energy[:, -1] / size + 1e-12)
    is_voiced = (scores[np.arange(len(best)), np.minimum(best, len(lags) - 1)] > VOICED) & (levels > levels.max() + QUIET_DB)
    return np.where(is_voiced, rate / lags[np.minimum(best, len(lags) - 1)], 0.0), levels


def steps(first: FloatArray, second: FloatArray, rate: int) -> tuple[float, float] | None:
    """Semitones and dB from the end of the first to the beginning of the second; None where one has no pitch."""
    edges = []
    for waveform, part in ((first, slice(-round(EDGE_S / HOP_S), None)), (second, slice(None, round(EDGE_S / HOP_S)))):
        pitch, levels = frames_of(waveform, rate)
        voiced = np.flatnonzero(pitch)[part]
        if not voiced.size:
            return None
        edges.append((np.median(pitch[voiced]), levels[voiced].mean()))
    (pitch_before, level_before), (pitch_after, level_after) = edges
    return float(12 * np.log2(pitch_after / pitch_before)), float(level_after - level_before)


def divided(waveform: FloatArray, texts: tuple[str, str], rate: int) -> tuple[FloatArray, FloatArray]:
    """One utterance at the longest pause between a half and one and a half of the first text's share."""
    _, levels = frames_of(waveform, rate)
    share = len(texts[0]) / len("".join(texts))
    begin, end = (round(part * share * len(levels)) for part in (0.6, 1.4))
    quiet = np.concatenate([[False], levels[begin:end] < levels.max() + QUIET_DB, [False]]).astype(int)
    starts, ends = np.flatnonzero(np.diff(quiet) == 1), np.flatnonzero(np.diff(quiet) == -1)
    place = begin + (int(starts[np.argmax(ends - starts)] + ends[np.argmax(ends - starts)]) // 2 if starts.size else (end - begin) // 2)
    sample = round((place * HOP_S + FRAME_S / 2) * rate)
    return waveform[:sample], waveform[sample:]


class Turns:
    """The sessions of one voice."""

    def __init__(self, pipeline: LocalPipeline, voice: VoiceChoice) -> None:
        self._pipeline, self._voice, self._count = pipeline, voice, 0
        self.rate = pipeline.sample_rate

    def say(self, text: str, layout: str, seed: int, continues: str | None = None) -> tuple[str, FloatArray]:
        """Its id, and what was heard."""
        self._count += 1
        session_id, options = f"turn-{self._count}", GenerationOptions(seed=seed, continues=continues)
        is_whole = layout == "whole"
        pieces = [text] if is_whole else split_pieces(text)
        chunks = self._pipeline.stream(pieces, self._voice, options, is_whole, session_id=session_id)
        return session_id, np.concatenate([chunk.waveform for chunk in chunks])


def spoken(turns: Turns, texts: tuple[str, str], layout: str, seed: int) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Both sentences as two turns."""
    first_id, first = turns.say(texts[0], layout, seed)
    _, continued = turns.say(texts[1], layout, seed + 1, continues=first_id)
    _, alone = turns.say(texts[1], layout, seed + 1)
    return {f"{layout}, alone": (first, alone), f"{layout}, continued": (first, continued)}


def summary(found: Sequence[tuple[float, float]], one: Sequence[tuple[float, float]]) -> dict[str, float]:
    """found, one: of the same pairs, in this form and as one utterance."""
    values: dict[str, float] = {}
    for index, name in enumerate(("pitch_step_semitones", "energy_step_db")):
        here, there = (np.array([pair[index] for pair in form]) for form in (found, one))
        values |= {
            f"{name}_mean": round(float(here.mean()), 2),
            f"{name}_mean_size": round(float(np.abs(here).mean()), 2),
            f"{name}_from_one_utterance": round(float(np.abs(here - there).mean()), 2),
        }
    return values


class Results:
    """Of all pairs so far, by form. A pair counts for the steps where each form has pitch on both sides."""

    def __init__(self) -> None:
        self._steps: dict[str, list[tuple[float, float]]] = {}
        self._errors: dict[str, list[int]] = {}
        self._joined: dict[str, list[bool]] = {layout: [] for layout in LAYOUTS}

    def add(self, forms: dict[str, tuple[FloatArray, FloatArray]], rate: int) -> None:
        made = {form: steps(first, second, rate) for form, (first, second) in forms.items()}
        for form, pair in made.items():
            if pair is not None and all(made.values()):
                self._steps.setdefault(form, []).append(pair)
        for layout, joined in self._joined.items():
            joined.append(not np.array_equal(forms[f"{layout}, alone"][1], forms[f"{layout}, continued"][1]))

    def add_words(self, form: str, wanted: str, heard: str) -> None:
        compared = compare(wanted, heard)
        counts = self._errors.setdefault(form, [0, 0])
        counts[0] += compared.errors
        counts[1] += compared.units

    def metrics(self) -> dict[str, Any]:
        joined = {layout: f"{sum(one)} of {len(one)}" for layout, one in self._joined.items()}
        forms = {form: {"pairs": len(found), **summary(found, self._steps[ONE])} for form, found in self._steps.items()}
        return {"joined": joined, "forms": forms, "word_errors": {form: f"{one} of {all_}" for form, (one, all_) in self._errors.items()}}


def measure(turns: Turns, options: argparse.Namespace, folder: Path, judge: JudgeProcess | None) -> None:
    """The result so far is reported after every pair."""
    results = Results()
    for number, texts in enumerate(pairs(options.pairs)):
        _, together = turns.say(" ".join(texts), LAYOUTS[0], seed=100 * number)
        forms = {ONE: divided(together, texts, turns.rate)}
        for layout in LAYOUTS:
            forms |= spoken(turns, texts, layout, seed=100 * number)
        results.add(forms, turns.rate)
        for form, (_, second) in forms.items():
            path = folder / f"{form.replace(', ', '-').replace(' ', '-')}-{number}.wav"
            soundfile.write(path, second, turns.rate)
            if judge is not None:
                results.add_words(form, texts[1], judge.judge(path, texts[1], "en")["heard"])
        report("continues", vars(options), results.metrics(), options.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", default="assets/voice")
    parser.add_argument("--speaker-id", default="nora")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--judges-python", help="of the environment of `bash run.sh judges`; absent: words are not judged")
    parser.add_argument("--keep", help="folder for the second sentences; absent: they are not kept")
    parser.add_argument("--out")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        judge = None
        if options.judges_python is not None:
            judge = stack.enter_context(JudgeProcess(JudgeChoice("whisper", "tiny.en"), Path(options.judges_python)))
            if judge.unavailable:
                raise SystemExit(f"The judge cannot work: {judge.unavailable}")
        pipeline = stack.enter_context(LocalPipeline(RuntimeConfig(model_dir=options.model_dir, max_sessions=2)))
        measure(Turns(pipeline, VoiceChoice(speaker_id=options.speaker_id)), options, folder, judge)


if __name__ == "__main__":
    main()
