"""The pytest plugin of the marker and the fixture ``attack``: each marked test has its ``Attack``; the report is written at the end."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.triton.reliability import BROKEN, HELD, UNFINISHED, Attack, commit_name, machine_name, report

ATTACKS = pytest.StashKey[dict[str, Attack]]()
STARTED = pytest.StashKey[tuple[float, float, str]]()  # time, load average, commit


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attacks on the real server (tests/triton)")
    group.addoption("--long-attacks", action="store_true", help="the long forms: 500 random inputs for each model, 2,000 sessions of soak")
    group.addoption("--reliability-report", type=Path, metavar="PATH", help="write what the attacks did and what came out, as Markdown")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "attack(name, must): an attack on the server, a row of docs/log/reliability.md")
    config.stash[ATTACKS] = {}
    if config.getoption("--reliability-report") is not None:
        config.stash[STARTED] = (time.monotonic(), os.getloadavg()[0], commit_name())


@pytest.fixture
def attack(request: pytest.FixtureRequest) -> Attack:
    """The row of this test in the report, named by its marker ``attack(name, must)``; ``{}`` in the name are parameters of the test."""
    marker = request.node.get_closest_marker("attack")
    parameters: dict[str, Any] = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    is_reported = request.config.getoption("--reliability-report") is not None
    made = Attack(marker.args[0].format(**parameters), marker.kwargs["must"], is_reported=is_reported)
    request.config.stash[ATTACKS][request.node.nodeid] = made
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    result = yield
    made = item.config.stash[ATTACKS].get(item.nodeid)
    if made is not None:
        if result.failed:
            made.verdict = BROKEN
        elif call.when == "call" and made.verdict == UNFINISHED:
            made.verdict = HELD
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    path: Path | None = session.config.getoption("--reliability-report")
    attacks = list(session.config.stash[ATTACKS].values())
    if path is None or not attacks:
        return
    started_at, load, commit = session.config.stash[STARTED]
    command = "python -m pytest " + shlex.join(session.config.invocation_params.args)
    text = report(attacks, command, commit, machine_name(load), time.monotonic() - started_at)
    path.write_text(text, encoding="utf-8")
