"""A corpus of buzzes in two voices, made without the teachers, and smoke sizes."""

from __future__ import annotations

import numpy as np
import torch

from training.corpus_data import Corpus
from training.sizes import SMOKE

SIZES = SMOKE


def small_corpus(utterances: int = 8, tokens: int = 60, seed: int = 0) -> Corpus:
    """The first half of the utterances is of voice 0."""
    random = np.random.default_rng(seed)
    audio, phones = list[np.ndarray[tuple[int], np.dtype[np.int16]]](), list[np.ndarray[tuple[int], np.dtype[np.uint8]]]()
    for number in range(utterances):
        base = 110.0 if number < utterances // 2 else 210.0
        syllables = random.integers(0, 8, tokens // 5)
        hertz = np.repeat(base * (1 + 0.05 * syllables), 5 * 960)
        phase = 2 * np.pi * np.cumsum(hertz) / 24_000
        waveform = sum(np.sin(overtone * phase) / overtone for overtone in range(1, 10))
        audio.append((2500 * waveform).astype(np.int16))
        phones.append(np.repeat(syllables + 1, 10).astype(np.uint8))
    counts = np.full(utterances, tokens, dtype=np.int64)
    voices = (np.arange(utterances) >= utterances // 2).astype(np.int64)
    return Corpus(
        torch.from_numpy(np.concatenate(audio)),
        torch.from_numpy(np.concatenate(phones)),
        np.cumsum(counts) - counts,
        counts,
        voices,
        np.arange(1, utterances + 1),
    )
