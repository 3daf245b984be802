"""Utterances from an engine, one after another: the ids of a text in, sampled ids out. For calibration and the smoke test."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bistream.config import RuntimeConfig
from bistream.errors import EngineError
from bistream.family import Family
from bistream.text.prompt_form import make_prompt_form, own_instruction
from bistream.text2token.engine import Engine, SamplingSpec, TokenSpace, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.factory import LanguageModelParts, load_parts

TURN_TIMEOUT_S = 600.0  # a full-size model on a CPU


class _Collector:
    """A ``TurnSink`` that waits."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.result: TurnResult | None = None
        self._ended = threading.Event()

    def on_ids(self, ids: Sequence[int]) -> None:
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


def told(family: Family, text: str) -> str:
    """The text behind the instruction that the family's prompts need, if they need one and it does not begin with one."""
    own, _ = own_instruction(family.default_instruction, text.encode())
    return text if own else make_prompt_form(family.default_instruction, "", "").instruction + text


def prompt_of(space: TokenSpace, text_ids: Sequence[int]) -> list[int]:
    """The uni-stream layout without a voice."""
    return [space.sos, *text_ids, space.task]


def decode(engine: Engine, prompt: Sequence[int], spec: SamplingSpec, max_new_ids: int) -> tuple[list[int], int | None]:
    """The ids that follow ``prompt``, until a stop id or the limit, and that stop id. Raises what the engine raises."""
    sequence = engine.open("utterance", spec, len(prompt) + max_new_ids)
    try:
        collector = _Collector()
        sequence.turn(prompt, TurnLimits(max_new_ids), collector)
        return collector.ids, collector.wait().stop_id
    finally:
        sequence.close()


@contextmanager
def reference_engine(model_dir: Path, max_ids: int, device: str = "cpu") -> Iterator[LanguageModelParts]:
    """The torch engine for one session, closed at the end. On a CPU: float32 and its plain form, the reference of all others."""
    config = RuntimeConfig(model_dir=str(model_dir), device=device, max_sessions=1, max_session_tokens=max_ids)
    parts = load_parts(config)
    try:
        yield parts
    finally:
        parts.engine.close()
