"""Batches of the language model: one to six sentences of one voice joined, in either layout, padded. Runs in loader processes; numpy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from bistream.text2token.engine import TokenSpace
from training.bpe import TextIds
from training.corpus_data import Corpus
from training.layouts import IGNORED, can_interleave, interleaved, one_shot

MOST_SENTENCES = 6
HELD_BACK = 50  # one text in so many is for validation alone
_BLANK_SHARE = 0.8  # of joints with a blank between the sentences; a caller's text may follow a prompt without one
_DROPOUT_SHARE = 0.5


@dataclass(frozen=True)
class Utterances:
    """What of a corpus the language model needs."""

    codes: NDArray[np.uint16]
    starts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    voices: NDArray[np.int64]
    texts: NDArray[np.int64]

    @classmethod
    def of(cls, corpus: Corpus, codes: NDArray[np.uint16]) -> Utterances:
        return cls(codes, corpus.starts, corpus.tokens, corpus.voices, corpus.texts)


class LanguageModelBatches(IterableDataset[tuple[Tensor, Tensor]]):
    """Endless (ids, targets), int64 [B, L] each; ids padded with 0, targets with ``IGNORED``."""

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

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        random = np.random.default_rng([self._seed, worker.id if worker else 0])
        while True:
            yield self._batch(random)

    def _batch(self, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Rows of the same number of sentences, so that little is padded."""
        sentences, rows, longest = int(random.integers(1, MOST_SENTENCES + 1)), list[tuple[list[int], list[int]]](), 0
        while True:
            row = self._row(random, sentences)
            longest = max(longest, len(row[0]))
            if rows and (len(rows) + 1) * longest > self._positions:
                break
            rows.append(row)
        longest = max(len(ids) for ids, _ in rows)
        ids, targets = np.zeros((len(rows), longest), np.int64), np.full((len(rows), longest), IGNORED, np.int64)
        for number, (row_ids, row_targets) in enumerate(rows):
            ids[number, : len(row_ids)], targets[number, : len(row_targets)] = row_ids, row_targets
        return torch.from_numpy(ids), torch.from_numpy(targets)

    def _row(self, random: np.random.Generator, sentences: int) -> tuple[list[int], list[int]]:
        members = self._members[random.choice(len(self._members), p=self._shares)]
        text, codes = list[int](), list[int]()
        for number, place in enumerate(random.choice(members, sentences)):
            variant = 0
            if number and random.random() < _BLANK_SHARE:
                variant = 2 if random.random() < _DROPOUT_SHARE else 1
            text += self._texts(int(self._data.texts[place]), variant)
            begin = int(self._data.starts[place])
            codes += self._data.codes[begin : begin + int(self._data.tokens[place])].tolist()
        layout = interleaved if random.random() < 0.5 and can_interleave(text, codes) else one_shot
        return layout(self._space, text, codes)
