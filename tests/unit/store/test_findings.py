"""Findings of earlier starts: found again under the same facts alone, and never a reason for a start to fail."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bistream.gpu.fidelity import Fidelity, facts_of, measured_once
from bistream.store import findings
from bistream.store.fingerprint import Fingerprint

FACTS = Fingerprint({"files": "1", "code": "2"})
values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(findings.STATE_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("state")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values)
def test_what_is_kept_is_recalled_under_the_same_facts_alone(value: object) -> None:
    findings.keep("a", FACTS, value)
    assert findings.recall("a", Fingerprint({"code": "2", "files": "1"})) == value
    assert findings.recall("b", FACTS) is None
    for other in ({"files": "1"}, {"files": "1", "code": "3"}, {"files": "1", "code": "2", "GPU": "x"}):
        assert findings.recall("a", Fingerprint(other)) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"facts": {}}', '{"facts": {"files": "1"}, "value": 1}', "\0" * 40])
def test_a_damaged_finding_is_none(state: Path, content: str) -> None:
    findings.keep("a", FACTS, True)
    (path,) = (state / "findings").iterdir()
    path.write_text(content, encoding="utf-8")
    assert findings.recall("a", FACTS) is None


def test_a_folder_that_cannot_be_written_is_a_warning(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    (state / "findings").write_text("a file stands here", encoding="utf-8")
    findings.keep("a", FACTS, True)
    assert "choose another --state-dir" in caplog.text and findings.recall("a", FACTS) is None


def fidelity(ratio: float) -> Fidelity:
    return Fidelity("the flow", "mel", torch.float16, ratio, 1e3, "layer.weight")


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("ratio", [41.5, -math.inf, math.inf])
def test_a_measurement_is_made_once(ratio: float, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    made = []

    def measure() -> list[Fidelity]:
        made.append(1)
        return [fidelity(ratio)]

    first = measured_once("flow", FACTS, measure)
    assert "earlier start" not in caplog.text
    assert measured_once("flow", FACTS, measure) == first == [fidelity(ratio)] and len(made) == 1
    assert "earlier start" in caplog.text
    measured_once("flow", Fingerprint({"files": "other"}), measure)
    assert len(made) == 2


def test_facts_follow_files_device_and_dtype(tiny_model_dir: Path, tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    facts = facts_of(tiny_model_dir, ("flow.pt", "absent.yaml"), cpu, torch.float16)
    assert facts == facts_of(tiny_model_dir, ("flow.pt",), cpu, torch.float16)
    (tmp_path / "flow.pt").write_bytes((tiny_model_dir / "hift.pt").read_bytes())
    others = [facts_of(tmp_path, ("flow.pt",), cpu, torch.float16), facts_of(tiny_model_dir, ("flow.pt",), cpu, torch.bfloat16)]
    assert len({found.digest for found in (facts, *others)}) == 3
