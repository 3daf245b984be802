"""Dashboard, alerts and documents name metrics and labels that exist, and leave none out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bistream.metrics.catalogue import ALL, BY_NAME, STAGES, MetricFamily, MetricType

ROOT = Path(__file__).resolve().parents[3]
OPERATIONS = ROOT / "docs/operations.md"
DASHBOARD = ROOT / "deploy/grafana/bistream.json"
ALERTS = ROOT / "deploy/prometheus/alerts.yaml"
NAME = re.compile(r"\bbistream_[a-z0-9_]+\b")
SELECTOR = re.compile(r"(bistream_[a-z0-9_]+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
# Other processes: tests/unit/interfaces/test_metrics.py, tests/unit/gateway/test_metrics.py
OTHERS = ("bistream_interfaces_", "bistream_gate_")
OTHER_WORDS = ("bistream_cosyvoice2", *OTHERS)


def family_of(name: str) -> MetricFamily | None:
    """Of a sample's name; histograms have three kinds of samples."""
    stem = re.sub(r"_(bucket|sum|count)$", "", name)
    return BY_NAME.get(name) or (BY_NAME[stem] if stem in BY_NAME and BY_NAME[stem].kind is MetricType.HISTOGRAM else None)


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"] if not any(name in target["expr"] for name in OTHERS))
    yield from (rule["expr"] for rule in rules() if not any(name in rule["expr"] for name in OTHERS))


@pytest.mark.parametrize("path", [OPERATIONS, DASHBOARD, ALERTS], ids=lambda path: path.name)
def test_every_metric_named_exists(path: Path) -> None:
    names = set(NAME.findall(path.read_text(encoding="utf-8")))
    assert names and not {name for name in names if family_of(name) is None and not name.startswith(OTHER_WORDS)}


@pytest.mark.parametrize("path", [OPERATIONS, DASHBOARD, ALERTS], ids=lambda path: path.name)
def test_every_metric_is_named(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = {family_of(name) for name in NAME.findall(text)}
    left = {family.name for family in ALL if family not in named}
    if path == ALERTS:  # they are shown beside those that alarm
        left -= {"bistream_text_characters_total", "bistream_lm_step_rows", "bistream_hop_batch_size"}
        left -= {"bistream_lm_steps_total", "bistream_hop_step_decisions_total", "bistream_lm_continued_sessions_total"}
    assert not left


def test_expressions_use_labels_and_values_that_exist() -> None:
    for expression in expressions():
        for name, inside in SELECTOR.findall(expression):
            family = family_of(name)
            assert family is not None, expression
            for label, values in MATCHER.findall(inside):
                if label not in ("job", "instance"):
                    assert label in family.labels, expression
                    known = family.labels[label]
                    assert not known or "$" in values or set(values.split("|")) <= set(known), expression


def test_expressions_are_balanced_and_histograms_are_read_by_their_buckets() -> None:
    for expression in expressions():
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), expression
        for name in NAME.findall(expression):
            family = family_of(name)
            assert family is not None and (family.kind is not MetricType.HISTOGRAM or name != family.name), expression
            if family.kind is MetricType.COUNTER:
                assert re.search(rf"(rate|increase)\({name}[{{\[]", expression), f"a counter without rate: {expression}"
        for quantile in re.findall(r"histogram_quantile\([\d.]+, sum by \(([^)]*)\) \(rate\((\w+)", expression):
            assert "le" in quantile[0] and quantile[1].endswith("_bucket"), expression
        assert expression.count("histogram_quantile") == expression.count("_bucket"), expression


def test_the_dashboard_can_be_imported() -> None:
    board = dashboard()
    assert board["uid"] == "bistream" and board["title"] and board["schemaVersion"] >= 39
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    variables = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"]))) - {"__rate_interval"}
    assert used <= variables
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["title"] and len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0


def test_alerts_are_complete_and_explained() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert re.fullmatch(r"Bistream[A-Za-z]+", rule["alert"]) and rule["annotations"]["summary"].endswith(".")
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert "for" not in rule or re.fullmatch(r"\d+[smh]", rule["for"])
    named = set(re.findall(r"`(Bistream\w+)`", OPERATIONS.read_text(encoding="utf-8")))
    assert named and named <= set(names)


def test_every_metric_has_a_row_with_its_labels() -> None:
    """``| `name{labels}` | meaning |``."""
    rows = re.findall(r"^\| `(bistream_\w+(?:\{[\w,]*\})?)` \| [^|]+ \|$", OPERATIONS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(family.name + (f"{{{','.join(family.labels)}}}" if family.labels else "") for family in ALL)


def test_every_stage_is_explained() -> None:
    assert all(f"| `{stage}` |" in OPERATIONS.read_text(encoding="utf-8") for stage in STAGES)
