"""Grouping and padding of spans."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from bistream.errors import EngineError
from bistream.token2mel.batching import Span, without_context
from bistream.token2mel.stage import FlowHop
from tests.unit.token2mel.flow_fixtures import EXACT, make_prompt, make_stage, make_tokens

PROMPT = make_prompt(30)
CHUNK = 25


@pytest.mark.parametrize("left", [0, 2])
def test_a_span_without_context_is_computed_as_with_it(left: int) -> None:
    """Every other hop recomputes everything; the next one reads the state that it keeps."""
    usual, mixed = make_stage(left_context_chunks=left), make_stage(left_context_chunks=left)
    compute, number = mixed.runner.compute, 0

    def computing(spans: Sequence[Span]) -> list[Tensor | EngineError]:
        if number % 2:
            return compute(spans)
        mels = compute([without_context(span, CHUNK) for span in spans])
        return [mel if isinstance(mel, EngineError) else mel[:, 2 * span.start :] for span, mel in zip(spans, mels, strict=True)]

    mixed.runner.compute = computing  # type: ignore[method-assign]
    states = usual.open(PROMPT), mixed.open(PROMPT)
    for number, count in enumerate((18, 70, 33, 60, 7)):
        exact, found = (
            stage.hop([FlowHop(state, make_tokens(count, number), number == 4)])[0]
            for stage, state in zip((usual, mixed), states, strict=True)
        )
        assert isinstance(exact, Tensor) and isinstance(found, Tensor) and exact.shape[1] > 0
        torch.testing.assert_close(found, exact, rtol=0, atol=EXACT)
    for state in states:
        state.close()
