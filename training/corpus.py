"""The corpus: texts in, shards of speech out, one file for 100 sentences of one voice, made by all cores.

A shard depends on its number alone, so an interrupted run goes on where it stopped, and a bare machine makes the same corpus
from the carried archive of teachers. ``corpus_data.py`` reads the shards.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from bistream.families.cosyvoice2 import AUDIO_FORMAT
from training import teachers
from training.voices import VOICES

SHARD_TEXTS = 100
CHARACTERS_PER_HOUR = 15.9 * 3600  # of the teachers' speech


@dataclass(frozen=True)
class ShardTask:
    """Some texts (numbers of lines) of one voice."""

    voice: int
    number: int
    texts: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{VOICES[self.voice].name}-{self.number:04d}.npz"


def plan_shards(lengths: Sequence[int], scale: float = 1.0, names: Collection[str] = ()) -> list[ShardTask]:
    """lengths: characters of each text. The voices take texts from one endless ring, so that together they speak all of them.

    scale: of every voice's hours. names: of the voices that speak; none: all. Shards of all voices are mixed, so that a part of the corpus
    has all voices.
    """
    tasks: list[ShardTask] = []
    place = 0
    for number, voice in enumerate(VOICES):
        if names and voice.name not in names:
            continue
        left, chosen = voice.hours * scale * CHARACTERS_PER_HOUR, list[int]()
        while left > 0:
            chosen.append(place % len(lengths))
            left -= lengths[chosen[-1]]
            place += 1
        for start in range(0, len(chosen), SHARD_TEXTS):
            tasks.append(ShardTask(number, start // SHARD_TEXTS, tuple(chosen[start : start + SHARD_TEXTS])))
    counts = {task.voice: task.number + 1 for task in tasks}  # the last task of a voice has the highest number
    return sorted(tasks, key=lambda task: ((task.number + 0.5) / counts[task.voice], task.voice))


def _make_shard(task: ShardTask, root: Path, folder: Path, texts: Sequence[str]) -> float:
    """Writes the shard; returns its seconds of speech. Raises ``ValueError`` when the teacher is mute."""
    spoken = teachers.speak(root, VOICES[task.voice], [texts[index] for index in task.texts])
    pairs = [(index, utterance) for index, utterance in zip(task.texts, spoken, strict=True) if utterance is not None]
    if not pairs:
        raise ValueError(f"The teacher {VOICES[task.voice].teacher} did not speak; see whether it runs here: ldd {root}/usr/bin/festival")
    partial_path = folder / f"{task.name}.partial"
    with partial_path.open("wb") as file:
        np.savez(
            file,
            audio=np.concatenate([utterance.waveform for _, utterance in pairs]),
            phones=np.concatenate([utterance.phones for _, utterance in pairs]),
            samples=np.array([len(utterance.waveform) for _, utterance in pairs], dtype=np.int32),
            texts=np.array([index for index, _ in pairs], dtype=np.int32),
            voice=np.array(task.voice),
        )
    partial_path.rename(folder / task.name)
    return sum(len(utterance.waveform) for _, utterance in pairs) / AUDIO_FORMAT.sample_rate


def make_corpus(root: Path, folder: Path, texts: Sequence[str], tasks: Sequence[ShardTask], deadline: float, processes: int = 0) -> bool:
    """Make the missing shards until ``deadline`` (of ``time.monotonic``). Returns whether all of them exist."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [task for task in tasks if not (folder / task.name).exists()]
    if not missing:
        return True
    seconds = 0.0
    make = partial(_make_shard, root=root, folder=folder, texts=texts)
    with multiprocessing.get_context("spawn").Pool(processes or len(os.sched_getaffinity(0))) as pool:
        for made in tqdm(pool.imap_unordered(make, missing), total=len(missing), desc="speaking", unit="shard"):
            seconds += made
            if time.monotonic() > deadline:
                pool.terminate()
                break
    print(f"{seconds / 3600:.2f} h of speech made")
    return all((folder / task.name).exists() for task in tasks)
