"""The table of the first step's unconditioned velocities: equal to the full solver's, for any sequence and any cut."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bistream.gpu.steps import Steps
from bistream.store.findings import STATE_VARIABLE
from bistream.store.fingerprint import Fingerprint
from bistream.token2mel import first_step
from bistream.token2mel.batching import Span
from bistream.token2mel.first_step import FirstStep
from bistream.token2mel.sizes import form_offset
from bistream.token2mel.solving import SpanBatch
from bistream.token2mel.stage import FlowHop, FlowStage
from tests.unet import network_of
from tests.unit.token2mel.flow_fixtures import TINY, make_prompt, make_stage, make_tokens

CHUNKS = 16
CHUNK, RATIO = TINY.encoder.static_chunk_size, TINY.token_mel_ratio


@cache
def stage_and_table(left: int) -> tuple[FlowStage, FirstStep]:
    stage = make_stage(left_context_chunks=left)
    table = FirstStep(TINY, network_of(stage).matching, left, CHUNKS)
    table.extend(CHUNKS)
    return stage, table


def free_velocities(stage: FlowStage, patch: pytest.MonkeyPatch) -> list[tuple[Span, Tensor]]:
    """Filled with every span computed from now on and its unconditioned velocities in the first step."""
    found: list[tuple[Span, Tensor]] = []
    begin, estimator = stage.runner.begin, network_of(stage).matching.estimator
    estimate, calls = estimator.steps, list[Tensor]()

    def estimating(*arguments: Any) -> Steps[Tensor]:
        calls.append((yield from estimate(*arguments)))
        return calls[-1]

    def at_once(spans: Sequence[Span]) -> SpanBatch:
        results = []
        for span in spans:
            calls.clear()
            results += begin([span]).finish()
            found.append((span, calls[0][1, : span.length * RATIO]))
        return SpanBatch(results)

    patch.setattr(estimator, "steps", estimating)
    patch.setattr(stage.runner, "begin", at_once)
    return found


def rows_of(table: FirstStep, span: Span) -> list[int]:
    """By definition: a chunk's frames in the form for the number of its tokens that the span knows."""
    rows = []
    for frame in range(span.start * RATIO, span.end * RATIO):
        chunk, place = divmod(frame, CHUNK * RATIO)
        known = min(CHUNK, span.end - chunk * CHUNK)
        rows.append(chunk * table.rows_per_chunk + form_offset(known, RATIO) + place)
    return rows


@pytest.mark.parametrize("left", [0, 2])
@settings(max_examples=3)
@given(prompt=st.integers(0, 80), hops=st.lists(st.integers(4, 70), min_size=1, max_size=4))
def test_the_table_is_what_the_network_computes(left: int, prompt: int, hops: list[int]) -> None:
    stage, table = stage_and_table(left)
    with pytest.MonkeyPatch.context() as patch:
        found = free_velocities(stage, patch)
        state = stage.open(make_prompt(prompt))
        for number, count in enumerate(hops):
            stage.hop([FlowHop(state, make_tokens(count), number == len(hops) - 1)])
        state.close()
    assert found
    for span, velocities in found:
        torch.testing.assert_close(table.velocities[rows_of(table, span)], velocities, rtol=0, atol=2e-4)


@pytest.mark.parametrize("left", [0, 2])
def test_chunks_are_computed_once_and_in_any_portions(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, whole = stage_and_table(left)
    monkeypatch.setattr(first_step, "_MAX_ROWS", 4 * CHUNK * RATIO * (4 if left else 6))  # so that forms are spread over evaluations
    parts = FirstStep(TINY, network_of(stage).matching, left, CHUNKS)
    for chunks in (1, 1, 3, 2, 4):
        parts.extend(chunks)
    rows = 4 * whole.rows_per_chunk
    torch.testing.assert_close(whole.velocities[:rows], parts.velocities[:rows], rtol=0, atol=1e-5)
    assert whole.velocities[:rows].abs().sum(dim=1).min() > 0
    assert not parts.velocities[rows:].any()


FACTS = Fingerprint({"files": "1"})


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    return tmp_path / "state"


def prepared(left: int, chunks: int, facts: Fingerprint | None, monkeypatch: pytest.MonkeyPatch) -> tuple[FirstStep, int]:
    """A new table, and how many chunks were computed for it."""
    stage, _ = stage_and_table(left)
    table, computed = FirstStep(TINY, network_of(stage).matching, left, CHUNKS), list[int]()
    compute = table._compute

    def counted(chunk: int) -> None:
        computed.append(chunk)
        compute(chunk)

    monkeypatch.setattr(table, "_compute", counted)
    table.prepare(chunks, facts)
    return table, len(computed)


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("left", [0, 2])
def test_a_later_start_takes_what_an_earlier_one_has_kept_and_goes_on_from_there(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    first, computed = prepared(left, 5, FACTS, monkeypatch)
    assert computed == 5
    second, computed = prepared(left, 5, FACTS, monkeypatch)
    assert computed == 0
    assert torch.equal(second.velocities, first.velocities)
    for table in (first, second):
        table.extend(9)
    assert torch.equal(second.velocities, first.velocities)
    assert second.velocities[: 9 * second.rows_per_chunk].abs().sum(dim=1).min() > 0


def test_what_was_kept_for_something_else_is_not_taken(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepared(0, 5, FACTS, monkeypatch)[1] == 5
    assert prepared(0, 5, Fingerprint({"files": "2"}), monkeypatch)[1] == 5
    assert prepared(0, 6, FACTS, monkeypatch)[1] == 6
    assert prepared(2, 5, FACTS, monkeypatch)[1] == 5
    assert prepared(0, 5, None, monkeypatch)[1] == 5
    monkeypatch.delenv(STATE_VARIABLE)
    assert prepared(0, 6, FACTS, monkeypatch)[1] == 6


@pytest.mark.parametrize("place", [0, 0.5, -1])
def test_a_damaged_file_is_computed_again(
    state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: float
) -> None:
    whole = prepared(0, 5, FACTS, monkeypatch)[0]
    (path,) = state.rglob(f"{first_step.KIND}-*")
    content = bytearray(path.read_bytes())
    content[int(place * len(content)) if place > 0 else int(place)] ^= 1
    path.write_bytes(content)
    found, computed = prepared(0, 5, FACTS, monkeypatch)
    assert computed == 5 and torch.equal(found.velocities, whole.velocities)
    assert "is damaged" in caplog.text
    path.write_bytes(path.read_bytes()[:40])
    assert prepared(0, 5, FACTS, monkeypatch)[1] == 5
    assert prepared(0, 5, FACTS, monkeypatch)[1] == 0
