"""The page of metrics, the documents about it, and the dashboard know the same names."""

from __future__ import annotations

import json
import re
from pathlib import Path

from interfaces.core.servers import Servers
from interfaces.core.service import SpeechService
from interfaces.core.voices import VoiceStore
from interfaces.settings import Limits
from interfaces.web.metrics import PREFIX, exposition

ROOT = Path(__file__).resolve().parents[3]
NAME = re.compile(rf"{PREFIX}_(\w+)")


def families() -> dict[str, str]:
    """Names and kinds."""
    service = SpeechService(Servers(("a:1", "b:1")), VoiceStore(()), Limits())
    page = exposition(service, 3)
    for line in page.splitlines():
        assert re.fullmatch(rf"# (HELP|TYPE) {PREFIX}_\w+ .+|{PREFIX}_\w+(\{{\w+=\"[^\"]+\"\}})? [0-9.e+-]+", line), line
    assert page.endswith("\n") and f'{PREFIX}_server_load{{server="1"}} 0' in page and f"{PREFIX}_sockets 3" in page
    return dict(re.findall(rf"^# TYPE {PREFIX}_(\w+) (\w+)$", page, re.MULTILINE))


def test_every_metric_is_in_the_document() -> None:
    rows = re.findall(rf"^\| `{PREFIX}_(\w+)(?:\{{\w+\}})?` \| ", (ROOT / "docs/interfaces.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(families())


def test_the_dashboard_names_metrics_that_exist() -> None:
    board = json.loads((ROOT / "deploy/grafana/bistream.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ()) if PREFIX in target["expr"]]
    known = families()
    assert expressions
    for expression in expressions:
        (name,) = NAME.findall(expression)
        is_bucket = name.endswith("_bucket")
        kind = known[name.removesuffix("_bucket")]
        assert is_bucket == (kind == "histogram") and ("rate(" in expression) == (kind != "gauge"), expression
