"""Batches of the language model: one to six sentences of one voice joined, in either layout, padded. Runs in loader processes; numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from bistream.text2token.engine import TokenSpace
from training.bpe import DROPOUT_CUTS, TextIds
from training.corpus_data import FRAMES_PER_TOKEN, Corpus
from training.layouts import IGNORED, aligned_places, can_interleave, interleaved, one_shot
from training.letters import spoken_bytes

MOST_SENTENCES = 6
# Rows have 1 to 6 sentences of 2.9 s on the mean, and each number of sentences has as many positions: 90 % of the positions are within
# so many seconds from the beginning of their row. With two seconds more, one sentence in ten of a story was said twice (96 sentences, by
# the attention head that follows the text); with so many, or less, none.
LONGEST_UTTERANCE_S = 12.0
HELD_BACK = 50  # one text in so many is for validation alone
_BLANK_SHARE = 0.8  # of joints with a blank between the sentences; a caller's text may follow a prompt without one
_DROPOUT_SHARE = 0.5
PHONES_AHEAD = (0, 2, 5)  # of which speech tokens after the predicted one the phone is known
_MEMBERS = 4 + len(PHONES_AHEAD)
Row = tuple[list[int], ...]  # ids, targets, aligned twice, and a list of phones for each of ``PHONES_AHEAD``
Batch = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Utterances:
    """The part of a corpus that the language model needs, small enough to be carried to a host without the corpus."""

    codes: NDArray[np.uint16]
    phones: NDArray[np.uint8]  # in the first half of each code
    letters: NDArray[np.uint8]  # the byte of its text that each code speaks
    starts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    voices: NDArray[np.int64]
    texts: NDArray[np.int64]

    @classmethod
    def of(cls, corpus: Corpus, codes: NDArray[np.uint16], texts: Sequence[str]) -> Utterances:
        phones = corpus.phones.cpu().numpy()[::FRAMES_PER_TOKEN]
        spoken = [phones[start : start + count] for start, count in zip(corpus.starts, corpus.tokens, strict=True)]
        letters = np.concatenate(spoken_bytes([texts[text] for text in corpus.texts], spoken, quiet=False))
        return cls(codes, phones, letters, corpus.starts, corpus.tokens, corpus.voices, corpus.texts)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            path,
            codes=self.codes,
            phones=self.phones,
            letters=self.letters,
            tokens=self.tokens.astype(np.int32),
            voices=self.voices.astype(np.uint8),
            texts=self.texts,
        )

    @classmethod
    def load(cls, path: Path) -> Utterances:
        with np.load(path) as found:
            tokens = found["tokens"].astype(np.int64)
            return cls(
                codes=found["codes"],
                phones=found["phones"],
                letters=found["letters"],
                starts=np.cumsum(tokens) - tokens,
                tokens=tokens,
                voices=found["voices"].astype(np.int64),
                texts=found["texts"],
            )


class LanguageModelBatches(IterableDataset[Batch]):
    """Endless ids and targets, int64 [B, L] each, aligned [2, B, L] and phones [A, B, L]; ids padded with 0, the others with ``IGNORED``.

    aligned: ``layouts.py``, the text token that is spoken and the next one. phones: of the speech tokens ``PHONES_AHEAD``.
    """

    def __init__(
        self, utterances: Utterances, texts: TextIds, space: TokenSpace, positions: int, seed: int, is_validation: bool = False
    ) -> None:
        super().__init__()
        self._data, self._texts, self._space = utterances, texts, space
        self._positions, self._seed = positions, seed
        chosen = (utterances.texts % HELD_BACK == 0) == is_validation
        self._members = [np.flatnonzero(chosen & (utterances.voices == voice)) for voice in np.unique(utterances.voices)]
        self._members = [members for members in self._members if len(members)]
        sizes = np.array([len(members) for members in self._members], dtype=np.float64)
        self._shares = sizes / sizes.sum()

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        random = np.random.default_rng([self._seed, worker.id if worker else 0])
        while True:
            yield self._batch(random)

    def _batch(self, random: np.random.Generator) -> Batch:
        """Rows of the same number of sentences, so that little is padded."""
        sentences, rows, longest = int(random.integers(1, MOST_SENTENCES + 1)), list[Row](), 0
        while True:
            row = self._row(random, sentences)
            longest = max(longest, len(row[0]))
            if rows and (len(rows) + 1) * longest > self._positions:
                break
            rows.append(row)
        longest = max(len(row[0]) for row in rows)
        batch = [np.full((len(rows), longest), IGNORED if member else 0, np.int64) for member in range(_MEMBERS)]
        for number, row in enumerate(rows):
            for items, values in zip(batch, row, strict=True):
                items[number, : len(values)] = values
        ids, targets, spoken, following, *phones = map(torch.from_numpy, batch)
        return ids, targets, torch.stack([spoken, following]), torch.stack(phones)

    def _row(self, random: np.random.Generator, sentences: int) -> Row:
        members = self._members[random.choice(len(self._members), p=self._shares)]
        text, codes, spoken, phones = list[int](), list[int](), list[NDArray[np.int64]](), list[NDArray[np.uint8]]()
        for number, place in enumerate(random.choice(members, sentences)):
            after_blank = number > 0 and random.random() < _BLANK_SHARE
            cut = int(random.integers(1, DROPOUT_CUTS + 1)) if random.random() < _DROPOUT_SHARE else 0
            ids = self._texts(int(self._data.texts[place]), after_blank, cut)
            begin, count = int(self._data.starts[place]), int(self._data.tokens[place])
            phones.append(self._data.phones[begin : begin + count])
            ends = np.cumsum([len(self._texts.pieces[index]) for index in ids])
            at = np.searchsorted(ends, self._data.letters[begin : begin + count].astype(np.int64) + after_blank, side="right")
            spoken.append(len(text) + np.minimum(at, len(ids) - 1))
            text += ids
            codes += self._data.codes[begin : begin + count].tolist()
        is_interleaved = random.random() < 0.5 and can_interleave(text, codes)
        inputs, targets = (interleaved if is_interleaved else one_shot)(self._space, text, codes)
        places = np.concatenate(spoken)
        following = np.minimum(places + 1, len(text) - 1)
        aligned = [aligned_places(item, len(text), is_interleaved).tolist() for item in (places, following)]
        return (inputs, targets, *aligned, *self._phones(np.concatenate(phones), targets))

    def _phones(self, phones: NDArray[np.uint8], targets: list[int]) -> list[list[int]]:
        """phones [n] of the codes -> for each of ``PHONES_AHEAD`` the phone at the places that predict a code."""
        known = np.array(targets)
        places = np.flatnonzero((known >= 0) & (known < self._space.speech_token_size))
        rows = np.full((len(PHONES_AHEAD), len(targets)), IGNORED, np.int64)
        for row, ahead in zip(rows, PHONES_AHEAD, strict=True):
            row[places[: len(phones) - ahead]] = phones[ahead:]
        return [row.tolist() for row in rows]
