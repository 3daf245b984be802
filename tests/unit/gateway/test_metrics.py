"""The page of the gate's metrics, the dashboard and the alerts know the same names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import yaml

from gateway.gate import Gate
from gateway.metrics import Exposition, Metrics

ROOT = Path(__file__).resolve().parents[3]
NAME = re.compile(r"\bbistream_gate_\w+")


def families() -> dict[str, str]:
    """Names as queries have them, and kinds."""
    nothing = SimpleNamespace(admission=SimpleNamespace(calls=0, sessions=0), is_ready=True)
    page = Exposition(Metrics(), lambda: Gate.gauges(nothing)).text().decode()  # type: ignore[arg-type]
    return {name: kind for name, kind in re.findall(r"^# TYPE (bistream_gate_\w+) (counter|gauge)$", page, re.MULTILINE)}


def test_dashboard_and_alerts_name_metrics_that_exist_and_show_them_all() -> None:
    board = json.loads((ROOT / "deploy/grafana/bistream.json").read_text(encoding="utf-8"))
    groups = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text(encoding="utf-8"))["groups"]
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    expressions += [rule["expr"] for group in groups for rule in group["rules"]]
    known, named = families(), set()
    for expression in expressions:
        for name in NAME.findall(expression):
            named.add(name)
            assert (f"rate({name}" in expression) == (known[name] == "counter"), expression
    assert named == set(known)
