#!/usr/bin/env python3
"""Is the voice understood? Held-out sentences through the real server, judged by others' networks beside teachers and noise.

    python -m training.sample --set b --voice nora           the teacher and noise
    python benchmarks/voice_quality.py speak --server localhost:8001 --set b --voice nora --pieces words
    python benchmarks/voice_quality.py judge --out benchmarks/results/voice-quality.json build/voice/judged/*

speak: one session for each sentence; pieces: words (10 in a second), characters, or all at once (one-shot layout); with --model-dir in this
process, without a server and without pauses, and all at once is then rendered offline. judge: word errors with
two standard errors of a bootstrap over sentences, DNSMOS, length over the teacher's, similarity to the centroids of the teachers' folders,
and how many sentences are nearest to their own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import soundfile
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks._common import report
from bistream.audio.resample import resample
from bistream.client.client import BistreamClient
from bistream.config import RuntimeConfig
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.errors import BistreamError
from bistream.families.cosyvoice2 import AUDIO_FORMAT
from bistream.local import LocalPipeline, VoiceChoice
from bistream.types import GenerationOptions
from training.heldout import NAMES, sentences

_BOOTSTRAPS = 1000
_JUDGES = Path(__file__).with_name("_voice_judges.py")
_LENGTHS = (0.7, 1.4)
Say = Callable[[str, str, int], list[NDArray[np.float32]]]  # text, kind of pieces, seed -> waveforms; raises ``BistreamError``


def pieces_of(text: str, kind: str) -> Iterator[str]:
    """The text as a caller sends it: words with the blank before them, or characters."""
    if kind == "characters":
        yield from text
    else:
        for number, word in enumerate(text.split(" ")):
            yield word if number == 0 else f" {word}"


def speak(options: argparse.Namespace) -> int:
    """WAV files and texts.json in OUT/VOICE-SET-PIECES; a sentence that failed counts as not understood."""
    with ExitStack() as stack:
        if options.model_dir is None:
            client = BistreamClient(options.server)
            say: Say = partial(spoken, client, options)
        else:
            pipeline = stack.enter_context(local_pipeline(options.model_dir))
            say = partial(spoken_locally, pipeline, chosen_voice(options))
        for kind in options.pieces:
            speak_set(options, kind, say)
    return 0


def speak_set(options: argparse.Namespace, kind: str, say: Say) -> None:
    texts = list(sentences(options.set))[: options.count]
    folder: Path = options.out / f"{options.voice}-{options.set}-{kind}"
    folder.mkdir(parents=True, exist_ok=True)
    teacher = options.out / f"{options.voice}-{options.set}-teacher" / "texts.json"
    lengths = json.loads(teacher.read_text(encoding="utf-8"))["teacher_s"] if teacher.exists() else [None] * len(texts)
    (folder / "texts.json").write_text(json.dumps({"texts": texts, "teacher_s": lengths[: len(texts)]}), encoding="utf-8")
    for number, text in enumerate(tqdm(texts, desc=folder.name, unit="sentence")):
        waveforms = []
        try:
            waveforms = say(text, kind, number)
        except BistreamError as error:
            print(f"{number}: {error.sentence}", file=sys.stderr)
        soundfile.write(
            folder / f"{number:03d}.wav", np.concatenate([*waveforms, np.zeros(1, np.float32)]), AUDIO_FORMAT.sample_rate, subtype="PCM_16"
        )


def spoken(client: BistreamClient, options: argparse.Namespace, text: str, kind: str, seed: int) -> list[NDArray[np.float32]]:
    """The chunks of one session. Raises ``BistreamError``."""
    if kind == "whole":
        with client.start(speaker_id=options.voice, seed=seed, text=text, is_end=True) as session:
            return [chunk.waveform for chunk in session]
    with client.start(speaker_id=options.voice, seed=seed) as session:
        for piece in pieces_of(text, kind):
            session.push_text(piece)
            if kind == "words" and options.word_rate:
                time.sleep(1.0 / options.word_rate)
        session.end_text()
        return [chunk.waveform for chunk in session]


def local_pipeline(directory: Path) -> LocalPipeline:
    """One thread, with the context of the demo."""
    return LocalPipeline(
        RuntimeConfig(model_dir=str(directory), device="cpu", num_threads=1, max_sessions=2, flow_state_mb=512, left_context_chunks=4)
    )


def chosen_voice(options: argparse.Namespace) -> VoiceChoice:
    """The named speaker of the checkpoint, or the recording of that name."""
    if options.recordings is None:
        return VoiceChoice(speaker_id=options.voice)
    samples, rate = soundfile.read(options.recordings / f"{options.voice}.wav", dtype="float32")
    transcript = (options.recordings / "transcript.txt").read_text(encoding="utf-8").strip()
    return VoiceChoice(resample(samples, rate, REFERENCE_SAMPLE_RATE), transcript)


def spoken_locally(pipeline: LocalPipeline, choice: VoiceChoice, text: str, kind: str, seed: int) -> list[NDArray[np.float32]]:
    sampling = GenerationOptions(seed=seed)
    if kind == "whole":
        return [pipeline.synthesize(text, choice, sampling)]
    return [chunk.waveform for chunk in pipeline.stream(pieces_of(text, kind), choice, sampling)]


def summary(judged: dict[str, Any], centroids: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    """One row of the table."""
    rows = judged["sentences"]
    errors, words = (np.array([row[name] for row in rows], dtype=np.float64) for name in ("errors", "words"))
    draws = np.random.default_rng(0).integers(0, len(rows), (_BOOTSTRAPS, len(rows)))
    spread = (errors[draws].sum(1) / words[draws].sum(1)).std()
    found: dict[str, Any] = {
        "sentences": len(rows),
        "word_errors_percent": round(100 * errors.sum() / words.sum(), 2),
        "plus_minus": round(196 * float(spread), 2),
    }
    for name in ("overall", "p808"):
        if scores := [row[name] for row in rows if name in row]:
            found[name] = round(float(np.mean(scores)), 2)
    if ratios := [row["seconds"] / row["teacher_s"] for row in rows if row.get("teacher_s")]:
        inside = [_LENGTHS[0] <= ratio <= _LENGTHS[1] for ratio in ratios]
        found |= {"length_ratio": round(float(np.mean(ratios)), 3), "length_inside_percent": round(100 * float(np.mean(inside)), 1)}
    vectors = np.array([row["voice"] for row in rows if "voice" in row])
    if len(vectors):
        found["similarity"] = {name: round(float((vectors @ centre).mean()), 3) for name, centre in centroids.items()}
        found |= identification(judged["system"], vectors, centroids)
    return found


def identification(system: str, vectors: NDArray[np.float64], centroids: dict[str, NDArray[np.float64]]) -> dict[str, float]:
    """vectors [sentences, size] of VOICE-SET-KIND: how many of them are nearest to the teacher of VOICE, and by how much on the mean."""
    names = [name for name in centroids if name.split("-")[0] == system.split("-")[0]]
    if not names or len(centroids) < 2:
        return {}
    near = {name: vectors @ centre for name, centre in centroids.items()}
    others = np.array([scores for name, scores in near.items() if name not in names])
    own = np.array([near[name] for name in names]).max(0)
    return {
        "identified_percent": round(100 * float(np.mean(own > others.max(0))), 1),
        "ahead_of_others": round(float(own.mean() - others.mean(1).max()), 3),
    }


def centroid(judged: dict[str, Any]) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = np.mean([row["voice"] for row in judged["sentences"] if "voice" in row], axis=0)
    return mean / np.linalg.norm(mean)


def judge(options: argparse.Namespace) -> int:
    """Runs the judges in their own environment, prints the table, writes the JSON."""
    command = [str(options.python), str(_JUDGES), "--quality-sentences", str(options.quality_sentences), *map(str, options.folders)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print("The judges ended with an error; the lines above say why.", file=sys.stderr)
        return 1
    all_judged = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    centroids = {each["system"]: centroid(each) for each in all_judged if each["system"].endswith("-teacher")}
    table = {each["system"]: summary(each, centroids) for each in all_judged}
    print("| system | word errors % | DNSMOS overall / P.808 | length | similarity |\n|---|---|---|---|---|")
    for name, row in table.items():
        quality = f"{row.get('overall', '-')} / {row.get('p808', '-')}"
        near = ", ".join(f"{other} {value}" for other, value in row.get("similarity", {}).items())
        print(f"| {name} | {row['word_errors_percent']} ±{row['plus_minus']} | {quality} | {row.get('length_ratio', '-')} | {near} |")
    heard = {each["system"]: [row["heard"] for row in each["sentences"]] for each in all_judged} if options.transcripts else {}
    config = {"folders": [folder.name for folder in options.folders], "quality_sentences": options.quality_sentences}
    report("voice_quality", config, {"table": table, "heard": heard}, options.out)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    speaking = commands.add_parser("speak", help="a set through a running server")
    speaking.add_argument("--server", default="localhost:8001", metavar="HOST:PORT")
    speaking.add_argument("--model-dir", type=Path, help="speak with this model directory in this process instead")
    speaking.add_argument("--set", choices=NAMES, default="a")
    speaking.add_argument(
        "--recordings", type=Path, help="with --model-dir: clone FOLDER/VOICE.wav, whose words are in FOLDER/transcript.txt"
    )
    speaking.add_argument("--voice", default="nora", help="speaker_id, also the teacher's name (default: %(default)s)")
    speaking.add_argument("--pieces", nargs="+", choices=("words", "characters", "whole"), default=["words"])
    speaking.add_argument("--word-rate", type=float, default=10.0, help="words a second; 0: as fast as possible (default: %(default)s)")
    speaking.add_argument("--count", type=int, default=1000, help="sentences at most")
    speaking.add_argument("--out", type=Path, default=Path("build/voice/judged"))
    speaking.set_defaults(function=speak)
    judging = commands.add_parser("judge", help="folders of WAV files")
    judging.add_argument("folders", type=Path, nargs="+")
    judging.add_argument("--python", type=Path, default=Path("build/judges/bin/python"), help="of the judges' environment")
    judging.add_argument("--quality-sentences", type=int, default=12, help="of each folder for DNSMOS (default: %(default)s)")
    judging.add_argument("--transcripts", action="store_true", help="keep what was heard in the JSON")
    judging.add_argument("--out", default=None, help="JSON with command, commit and results")
    judging.set_defaults(function=judge)
    options = parser.parse_args()
    return int(options.function(options))


if __name__ == "__main__":
    sys.exit(main())
