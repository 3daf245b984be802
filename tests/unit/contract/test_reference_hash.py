"""The hash of a recording and its transcript is what the wire protocol says, and belongs to one voice only."""

from __future__ import annotations

import hashlib
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.contract.checks import check_reference_hash
from bistream.contract.voices import reference_hash

PROTOCOL = Path(__file__).resolve().parents[3] / "docs" / "wire_protocol.md"
SAMPLES = st.lists(st.floats(-1.0, 1.0, width=32), min_size=1, max_size=20)
SETTINGS = settings(max_examples=20, deadline=None)


@SETTINGS
@given(SAMPLES, st.text(st.characters(exclude_categories=["Cs"]), max_size=10))
def test_it_is_computed_byte_for_byte_as_documented(samples: list[float], text: str) -> None:
    data = text.encode()
    expected = hashlib.sha256(b"\x01" + struct.pack("<I", len(data)) + data + struct.pack(f"<{len(samples)}f", *samples)).hexdigest()
    found = reference_hash(np.array(samples, np.float32), text)
    assert found == expected == reference_hash(np.array([samples], np.float32), data)
    check_reference_hash(found)


def test_the_example_of_the_document() -> None:
    example = reference_hash(np.array([0.0, 0.5, -0.5, 0.25], np.float32), "H\u00e9llo.")
    assert re.findall(r"`([0-9a-f]{64})`", PROTOCOL.read_text(encoding="utf-8")) == [example]


@pytest.mark.parametrize("dtype", ["<f4", ">f4"])
def test_the_order_of_bytes_and_the_memory_layout_do_not_count(dtype: str) -> None:
    wave = np.linspace(-1, 1, 64, dtype=np.float32)
    assert reference_hash(np.repeat(wave, 2).astype(dtype)[::2], "x") == reference_hash(wave, "x")


def test_it_depends_on_sound_and_text() -> None:
    first, second = np.zeros(100, dtype=np.float32), np.ones(100, dtype=np.float32)
    assert len({reference_hash(wav, text) for wav in (first, second, first[:99]) for text in ("", "a", "b")}) == 9


@SETTINGS
@given(st.text(st.characters(codec="ascii"), min_size=4, max_size=12), SAMPLES)
def test_the_end_of_a_transcript_cannot_pass_for_samples(text: str, samples: list[float]) -> None:
    """The same bytes, cut elsewhere."""
    moved = np.frombuffer(text[-4:].encode(), "<f4")
    wave = np.array(samples, np.float32)
    assert reference_hash(np.concatenate([moved, wave]), text[:-4]) != reference_hash(wave, text)
