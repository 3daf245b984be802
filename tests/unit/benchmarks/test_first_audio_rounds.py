"""What ``benchmarks/first_audio_rounds.py`` makes of its runs."""

from __future__ import annotations

from typing import Any

from benchmarks.first_audio_rounds import SERIES, median_of, short_name
from bistream.families.registry import FAMILIES


def one(p50: float, p99: float, audio_s_per_s: float, gaps: int = 0) -> dict[str, Any]:
    first = {"p50": p50, "p90": p99, "p99": p99}
    counts = {"sessions": 4, "sessions_with_gap": gaps, "refused": 0, "failed": 0}
    return {"first_audio_client_ms": first, "audio_s_per_s": audio_s_per_s, **counts}


def test_medians_are_of_the_runs_and_counts_of_each() -> None:
    found = median_of([one(10.0, 90.0, 3.0, 2), one(30.0, 40.0, 1.0), one(20.0, 50.0, 2.0)])
    assert found["p50"] == 20.0 and found["p99"] == 50.0 and found["audio_s_per_s"] == 2.0
    assert found["sessions_with_gap"] == [2, 0, 0] and found["sessions"] == [4, 4, 4]


def test_a_run_without_audio_leaves_no_median() -> None:
    silent = one(1.0, 1.0, 0.0) | {"first_audio_client_ms": {}}
    assert "p50" not in median_of([one(10.0, 90.0, 3.0), silent])


def test_every_family_has_the_loads_of_the_readme() -> None:
    assert set(SERIES) == {family.name for family in FAMILIES}
    for series in SERIES.values():
        assert {"alone", "closed", "fed"} <= {one.name for one in series}


def test_names_of_gpus() -> None:
    names = {"NVIDIA H200": "h200", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA A100-SXM4-80GB": "a100", "NVIDIA GeForce RTX 4090": "rtx4090"}
    assert {device: short_name(device) for device in names} == names
