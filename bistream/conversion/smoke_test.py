"""Whether an engine says what the torch engine says: greedy utterances of both, and how far a different id is from the best one.

Other arithmetic rounds differently, so where two ids have nearly the same score another engine may take the other one, and from there on
the utterances differ. Therefore every id is judged by the reference's own scores, given the ids before it: an id whose score is the
best but for a tolerance is right.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bistream.errors import EngineError
from bistream.text2token.engine import Engine, SamplingSpec, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.qwen2 import Qwen2Model

# Scores are of size 20; 16-bit heads round them to 0.06 (bfloat16) and 0.008 (float16), and their inputs are rounded in every layer.
TOLERANCES = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
TURN_TIMEOUT_S = 600.0  # a full-size model on a CPU
GREEDY = SamplingSpec(temperature=0.0)


class _Collector:
    """A ``TurnSink`` that waits."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.result: TurnResult | None = None
        self._ended = threading.Event()

    def on_ids(self, ids: Sequence[int], texts_left: int | None = None) -> None:
        self.ids += ids

    def on_end(self, result: TurnResult) -> None:
        self.result = result
        self._ended.set()

    def wait(self) -> TurnResult:
        if not self._ended.wait(TURN_TIMEOUT_S) or self.result is None:
            raise EngineError(f"The engine did not end an utterance within {TURN_TIMEOUT_S:g} s; look at its log.")
        if self.result.end is TurnEnd.ERROR:
            raise EngineError(self.result.error or "The engine failed; look at its log.")
        return self.result


def speak(engine: Engine, prompt: Sequence[int], max_new_ids: int) -> list[int]:
    """The ids that follow ``prompt``, until the limit or a stop id, which is the last one then. Raises what the engine raises."""
    sequence = engine.open("utterance", GREEDY, len(prompt) + max_new_ids)
    try:
        collector = _Collector()
        sequence.turn(prompt, TurnLimits(max_new_ids), collector)
        stop_id = collector.wait().stop_id
        return collector.ids if stop_id is None else [*collector.ids, stop_id]
    finally:
        sequence.close()


@dataclass(frozen=True)
class Comparison:
    """num_equal: leading ids that are those of the torch engine. worst_gap: by how much a score was below the best one."""

    num_ids: int
    num_equal: int
    worst_gap: float

    def is_right(self, tolerance: float) -> bool:
        return self.num_ids > 0 and self.worst_gap <= tolerance


def compare(reference: Qwen2Model, prompt: Sequence[int], found: Sequence[int], expected: Sequence[int]) -> Comparison:
    """found, expected: ids that the two engines decoded after ``prompt``, each with its stop id where it has one."""
    if not found:
        return Comparison(0, 0, float("inf"))
    space = reference.space
    with torch.inference_mode():
        scores = reference.logits(reference.forward_dense(torch.tensor([*prompt, *found[:-1]]))[len(prompt) - 1 :])
    rows = torch.tensor(found) - space.speech_offset
    in_head = (rows >= 0) & (rows < scores.shape[1])
    chosen = scores.gather(1, rows.clamp(0, scores.shape[1] - 1)[:, None])[:, 0]
    gaps = torch.where(in_head, scores.amax(1) - chosen, torch.inf)  # an id that is no row of the head cannot be sampled at all
    shorter = min(len(found), len(expected))
    num_equal = next((index for index in range(shorter) if found[index] != expected[index]), shorter)
    return Comparison(len(found), num_equal, float(gaps.max()))
