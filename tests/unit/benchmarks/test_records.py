"""Results that survive an interruption."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks._records import Records, read_records
from bistream.errors import InvalidInputError

VALUES = st.lists(st.fixed_dictionaries({"id": st.text(max_size=8), "seconds": st.floats(0, 100)}), max_size=6)


@settings(max_examples=60, deadline=None)
@given(before=VALUES, after=VALUES, data=st.data())
def test_what_was_written_whole_is_read_again(before: list[dict[str, Any]], after: list[dict[str, Any]], data: st.DataObject) -> None:
    """A file that was cut anywhere keeps the lines before the cut, and goes on after them."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        with Records(folder, {}) as records:
            for record in before:
                records.add(record)
        file = folder / "records.jsonl"
        content = file.read_bytes()
        cut = content[: data.draw(st.integers(0, len(content)))]
        file.write_bytes(cut)
        kept = before[: cut.count(b"\n")]
        with Records(folder, {}) as records:
            assert records.all == kept
            for record in after:
                records.add(record)
            assert records.all == kept + after
        assert read_records(file) == kept + after


def test_results_of_two_configurations_do_not_mix(tmp_path: Path) -> None:
    with Records(tmp_path, {"mode": "streaming", "rows": (1, 2), "split": None}) as records:
        records.add({"id": "a"})
    Records(tmp_path, {"mode": "streaming", "rows": [1, 2], "split": None}).close()
    with pytest.raises(InvalidInputError, match="results with another mode, rows; choose another --out"):
        Records(tmp_path, {"mode": "offline", "rows": 3, "split": None})


def test_a_run_that_measured_nothing_leaves_the_folder_to_another_configuration(tmp_path: Path) -> None:
    Records(tmp_path, {"model_dir": "mistyped"}).close()
    with Records(tmp_path, {"model_dir": "right"}) as records:
        records.add({"id": "a"})
    with pytest.raises(InvalidInputError, match="results with another model_dir"):
        Records(tmp_path, {"model_dir": "mistyped"})


def test_damage_is_said(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("{}\nnot JSON\n{}\n")
    with pytest.raises(InvalidInputError, match="is damaged"):
        Records(tmp_path, {})
