"""Which letter is being spoken at each speech token: a hidden Markov model over the bytes of a text, learned from texts and phones alone.

Each phone is spoken by one byte; the next one by the same byte or a later one. What a byte sounds like and how far the text goes on between
two phones is counted on the best paths (Viterbi training), which begin at even pace through the text. No lexicon is needed, and no word
boundary of a teacher: engines differ in what they tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from training.phones import PHONES, SILENCE

MOST_JUMP = 8  # bytes from one phone to the next: silent letters, a blank, quotation marks
ROUNDS = 6
_BATCH = 256  # sentences side by side
_LEARN_FROM = 4000  # sentences
_BYTES = 256
_DIGITS = np.isin(np.arange(_BYTES), np.frombuffer(b"0123456789$%&", np.uint8))  # spoken by many phones each
_UNREACHED = -1e9
_SKIPPED = -1.0  # a byte after the last phone


@dataclass(frozen=True)
class Sounds:
    """Logarithms of probabilities. of_bytes: [256, phones]; jumps: [2, MOST_JUMP + 1], of letters and of digits."""

    of_bytes: NDArray[np.float32]
    jumps: NDArray[np.float32]

    @classmethod
    def counted(cls, pairs: Iterable[tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int64]]]) -> Sounds:
        """(bytes of a text, its phones, the byte of each phone), smoothed."""
        sounds, jumps = np.full((_BYTES, len(PHONES)), 0.1), np.full((2, MOST_JUMP + 1), 1.0)
        for text, phones, places in pairs:
            np.add.at(sounds, (text[places], phones), 1.0)
            steps = np.minimum(np.diff(places), MOST_JUMP)
            np.add.at(jumps, (_DIGITS[text[places[:-1]]].astype(np.int64), steps), 1.0)
        return cls(_logarithms(sounds), _logarithms(jumps))


def spoken_bytes(texts: Sequence[str], phones: Sequence[NDArray[np.uint8]], quiet: bool = True) -> list[NDArray[np.uint8]]:
    """texts, and the phones [n] of each, one at each speech token -> the byte of the text that is being spoken at each, uint8 [n].

    In a pause it is the byte that comes next. Texts have at most 256 bytes, or the last ones are never spoken.
    """
    encoded = [np.frombuffer(text.encode(), np.uint8)[:_BYTES] for text in texts]
    begun = [_begun(item) for item in phones]
    runs = [item[new] for item, new in zip(phones, begun, strict=True)]
    spoken = [number for number, run in enumerate(runs) if len(run) and len(encoded[number])]
    learn = spoken[:: max(1, len(spoken) // _LEARN_FROM)]
    paths = {number: np.arange(len(runs[number])) * len(encoded[number]) // len(runs[number]) for number in learn}
    for _ in range(ROUNDS):
        sounds = Sounds.counted((encoded[number], runs[number], path) for number, path in paths.items())
        paths = dict(_best_paths(sounds, encoded, runs, learn))
    sounds = Sounds.counted((encoded[number], runs[number], path) for number, path in paths.items())
    found = [np.zeros(len(item), np.uint8) for item in phones]
    for number, path in tqdm(_best_paths(sounds, encoded, runs, spoken), total=len(spoken), desc="letters", disable=quiet):
        found[number] = _at_tokens(path, begun[number], phones[number])
    return found


def _logarithms(counts: NDArray[np.float64]) -> NDArray[np.float32]:
    shares: NDArray[np.float32] = np.log(counts / counts.sum(axis=-1, keepdims=True)).astype(np.float32)
    return shares


def _begun(phones: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Where a phone begins that is no silence."""
    begins: NDArray[np.bool_] = (phones != SILENCE) & (phones != np.concatenate(([SILENCE], phones[:-1])))
    return begins


def _at_tokens(path: NDArray[np.int64], begun: NDArray[np.bool_], phones: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """path [phones] -> the byte at each speech token."""
    current = np.cumsum(begun) - (phones != SILENCE)
    places: NDArray[np.uint8] = path[np.minimum(current, len(path) - 1)].astype(np.uint8)
    return places


def _best_paths(
    sounds: Sounds, texts: Sequence[NDArray[np.uint8]], runs: Sequence[NDArray[np.uint8]], chosen: Sequence[int]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(number of the sentence, byte of each phone), in batches of similar length."""
    order = sorted(chosen, key=lambda number: (len(runs[number]), len(texts[number])))
    for start in range(0, len(order), _BATCH):
        batch = order[start : start + _BATCH]
        paths = _viterbi(sounds, [texts[number] for number in batch], [runs[number] for number in batch])
        yield from zip(batch, paths, strict=True)


def _viterbi(sounds: Sounds, texts: Sequence[NDArray[np.uint8]], runs: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.int64]]:
    """The best path of each sentence, int64 [phones]: never backwards."""
    rows, width, most = len(texts), max(map(len, texts)), max(map(len, runs))
    text, phones = np.zeros((rows, width), np.uint8), np.zeros((rows, most), np.uint8)
    for row, (own, run) in enumerate(zip(texts, runs, strict=True)):
        text[row, : len(own)], phones[row, : len(run)] = own, run
    lengths, ends = np.array([len(own) for own in texts]), np.array([len(run) for run in runs])
    leaving = sounds.jumps[_DIGITS[text].astype(np.int64)]  # [rows, width, jumps]
    outside = np.arange(width) >= lengths[:, None]
    after_last = np.where(outside, _UNREACHED, _SKIPPED * (lengths[:, None] - 1 - np.arange(width)))
    score = np.where(outside | (np.arange(width) > MOST_JUMP), _UNREACHED, _SKIPPED * np.arange(width)).astype(np.float32)
    score += sounds.of_bytes[text, phones[:, :1]]
    came = np.zeros((most, rows, width), np.uint8)
    last = np.where(ends == 1, (score + after_last).argmax(1), 0)
    for step in range(1, most):
        options = np.full((MOST_JUMP + 1, rows, width), _UNREACHED, np.float32)
        for jump in range(min(MOST_JUMP + 1, width)):
            options[jump, :, jump:] = score[:, : width - jump] + leaving[:, : width - jump, jump]
        came[step] = options.argmax(0)
        score = options.max(0) + sounds.of_bytes[text, phones[:, step, None]] + np.where(outside, _UNREACHED, 0.0).astype(np.float32)
        last = np.where(ends == step + 1, (score + after_last).argmax(1), last)
    return _traced(came, last, ends)


def _traced(came: NDArray[np.uint8], last: NDArray[np.int64], ends: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Back from the byte of the last phone. came: [phones, rows, width], the jump that led to each byte."""
    rows = np.arange(len(last))
    places = np.zeros((len(came), len(last)), np.int64)
    at = last.copy()
    for step in range(len(came) - 1, -1, -1):
        is_there = step < ends
        places[step] = at
        at = np.where(is_there, at - came[step, rows, at], at)
    return [places[:end, row] for row, end in enumerate(ends)]
