"""The page of metrics, the documents about it, and the dashboard know the same names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from interfaces.core.record import Ending
from interfaces.core.servers import Servers
from interfaces.core.service import SpeechService
from interfaces.core.voices import VoiceStore
from interfaces.settings import InterfaceLimits
from interfaces.web.metrics import PREFIX, exposition

ROOT = Path(__file__).resolve().parents[3]
NAME = re.compile(rf"{PREFIX}_(\w+)")


def families() -> dict[str, str]:
    """Names and kinds."""
    service = SpeechService(Servers(("a:1", "b:1")), VoiceStore(()), InterfaceLimits())
    page = exposition(service, 3)
    for line in page.splitlines():
        assert re.fullmatch(rf"# (HELP|TYPE) {PREFIX}_\w+ .+|{PREFIX}_\w+(\{{\w+=\"[^\"]+\"\}})? [0-9.e+-]+", line), line
    assert page.endswith("\n") and f'{PREFIX}_server_load{{server="1"}} 0' in page and f"{PREFIX}_sockets 3" in page
    return dict(re.findall(rf"^# TYPE {PREFIX}_(\w+) (\w+)$", page, re.MULTILINE))


def test_every_metric_is_in_the_document() -> None:
    rows = re.findall(rf"^\| `{PREFIX}_(\w+)(?:\{{\w+\}})?` \| ", (ROOT / "docs/interfaces.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(families())


def expressions() -> list[str]:
    """Of the dashboard and the alerts."""
    board = json.loads((ROOT / "deploy/grafana/bistream.json").read_text(encoding="utf-8"))
    groups = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text(encoding="utf-8"))["groups"]
    shown = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return [one for one in (*shown, *(rule["expr"] for group in groups for rule in group["rules"])) if PREFIX in one]


def test_dashboard_and_alerts_name_metrics_that_exist_and_show_them_all() -> None:
    known, named = families(), set()
    for expression in expressions():
        for name in NAME.findall(expression):
            stem = name.removesuffix("_bucket")
            named.add(stem)
            assert name.endswith("_bucket") == (known[stem] == "histogram"), expression
            assert (re.search(rf"rate\({PREFIX}_{name}", expression) is not None) == (known[stem] != "gauge"), expression
        for ending in re.findall(r'ending="(\w+)"', expression):
            assert ending in list(Ending)
    assert set(known) - named <= {"server_ready", "server_sessions"}
