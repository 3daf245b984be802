"""Where in its text a language model is while it makes each speech token: the text token that one attention head looks at most.

In some models a head follows the text that is being spoken (of the shipped voice the training makes it do so); ``text_position_head`` names
it. One product of the head's query with the stored keys of the text is all it takes: no softmax, and nothing that the model computes
changes. In plain PyTorch, for the plain tier; ``graphs.text_reading`` reads it in recorded steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bistream.checkpoints.alignment import Head
from bistream.checkpoints.config import LanguageModelConfig
from bistream.config import RuntimeConfig
from bistream.errors import ConfigError
from bistream.text2token.kv_cache import PagedCache
from bistream.text2token.sequence import Segment


def head_of(config: RuntimeConfig, sizes: LanguageModelConfig) -> Head | None:
    """The head to read: of the configuration, or of the checkpoint; None: no one. Raises ``ConfigError`` for one that there is not."""
    if config.text_position_head in ("auto", "none"):
        return sizes.text_position_head if config.text_position_head == "auto" else None
    layer, head = map(int, config.text_position_head.split(","))
    if layer >= sizes.num_hidden_layers or head >= sizes.num_attention_heads:
        raise ConfigError(
            f"Parameter 'text_position_head' is {config.text_position_head!r}, but the model has {sizes.num_hidden_layers} layers of "
            f"{sizes.num_attention_heads} heads, counted from 0; set it to auto, none or one of them."
        )
    return layer, head


class TextReader:
    """Reads one head, for a step runner: ``begin`` before a step, ``observe`` in it; then ``found`` is what it saw."""

    def __init__(self, head: Head, sizes: LanguageModelConfig, cache: PagedCache) -> None:
        self._layer, self._head = head
        kv_head = self._head * sizes.num_key_value_heads // sizes.num_attention_heads
        self._keys = cache.layer(self._layer)[0].flatten(0, 1)[:, kv_head]  # [positions of the cache, head_size]; not a copy
        self._block_size = cache.block_size
        self._rows: slice | Tensor = slice(0)
        self._places = torch.zeros(0, dtype=torch.int64)
        self._known: tuple[tuple[int, int], ...] = ()  # slots and numbers of text ids that the places are of
        self.found: list[int] = []  # for each segment that samples: the number of a text id among its sequence's; -1: it has none

    def begin(self, segments: Sequence[Segment], rows: NDArray[np.int64], tables: NDArray[np.int64], has_new: bool) -> None:
        """segments: those that sample, if any; rows: the last of each, ascending. tables: by slot, the blocks of its sequence. has_new: a
        slot has a new sequence, whether it samples already or not."""
        self.found = []
        if has_new:
            self._known = ()
        if not segments:
            return
        is_each = rows[-1] == len(rows) - 1  # row of the step: nobody is being fed
        self._rows = slice(len(rows)) if is_each else torch.from_numpy(rows).to(self._keys.device)
        key = tuple((segment.slot, len(segment.texts)) for segment in segments)
        if key != self._known:
            self._find_places(segments, tables)
            self._known = key

    def _find_places(self, segments: Sequence[Segment], tables: NDArray[np.int64]) -> None:
        """In the cache, [segments x the most text ids]; they change with each turn, not with each step. A row with fewer repeats its last,
        so that no mask is needed."""
        most = max(len(segment.texts) for segment in segments)
        places = np.zeros((len(segments), most), np.int64)
        for row, segment in enumerate(segments):
            if segment.texts:
                positions = np.array(segment.texts, np.int64)
                found = tables[segment.slot, positions // self._block_size] * self._block_size + positions % self._block_size
                places[row, : len(found)] = found
                places[row, len(found) :] = found[-1]
        self._places = torch.from_numpy(places.reshape(-1)).to(self._keys.device)

    def observe(self, layer: int, query: Tensor) -> None:
        """query [rows of the step, heads, head_size] of a layer, whose keys are in the cache."""
        if layer != self._layer:
            return
        if not len(self._places):
            self.found = [-1] * len(self._known)
            return
        keys = self._keys.index_select(0, self._places).view(len(self._known), -1, self._keys.shape[1])
        scores = torch.bmm(keys, query[self._rows, self._head, :, None])  # [segments, text ids, 1]
        numbers: list[int] = scores.argmax(1)[:, 0].tolist()
        self.found = [min(number, count - 1) for number, (_, count) in zip(numbers, self._known, strict=True)]
