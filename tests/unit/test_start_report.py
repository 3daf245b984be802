"""The parts of a start as log lines, and the table that is made of them."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

import pytest

from bistream.start_phases import INTERPRETER, interpreter_is_ready, phase, progress_in, took
from bistream.triton.startup import prepare_process
from scripts.start_report import last_start, read_parts, table

LINES = """
2026-11-24 12:00:00,500 INFO serve: start: interpreter and first imports, 0.50 s
2026-11-24 12:00:00,600 INFO serve: the server's own log: /x/server.log
2026-11-24 12:00:02,000 INFO llm_bistream bistream.start_phases: start: interpreter and first imports, 0.40 s
2026-11-24 12:00:04,000 INFO llm_bistream bistream.start_phases: start: language model: weights read, 1.50 s
2026-11-24 12:00:04,100 WARNING llm_bistream bistream.gpu.fidelity: start: not a part
2026-11-24 12:00:05,000 INFO serve: start: Triton and its models, 4.25 s
""".splitlines()


def test_parts_of_all_processes() -> None:
    parts = last_start(read_parts(LINES))
    assert [(part.process, part.name) for part in parts] == [
        ("serve", INTERPRETER),
        ("serve", "Triton and its models"),
        ("llm_bistream", INTERPRETER),
        ("llm_bistream", "language model: weights read"),
    ]
    zero = parts[0].began
    assert [round(part.began - zero, 2) for part in parts] == [0.0, 0.75, 1.6, 2.5]
    rows = table(parts)
    assert rows[-1] == "5.00 s in all" and len(rows) == 6
    assert rows[4].split()[:3] == ["2.50", "1.50", "llm_bistream"]


def test_the_programs_lines_are_those_that_are_read(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with phase("a part: with, a comma"):
        pass
    with pytest.raises(KeyError), phase("a part that fails"):
        raise KeyError
    took("another", 12.345)
    interpreter_is_ready()
    output = io.StringIO()
    for form in ("%(asctime)s %(levelname)s token2wav %(name)s: %(message)s", "%(asctime)s %(levelname)s serve: %(message)s"):
        output.writelines(logging.Formatter(form).format(record) + "\n" for record in caplog.records)
    parts = read_parts(output.getvalue().splitlines())
    assert [(part.process, part.name) for part in parts] == [
        (process, name) for process in ("token2wav", "serve") for name in ("a part: with, a comma", "another", INTERPRETER)
    ]
    assert parts[1].ended - parts[1].began == pytest.approx(12.35, abs=0.006)
    assert 0.0 < parts[2].ended - parts[2].began < 3600.0
    assert "asctime)s %(levelname)s {model_name} %(name)s" in Path(sys.modules[prepare_process.__module__].__file__ or "").read_text()


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        ("2026-11-24 12:00:04,000 INFO token2wav bistream.start_phases: start: flow: 100 graphs, 1.50 s\n", "token2wav: flow: 100 graphs"),
        ("2026-11-24 12:00:04,000 INFO token2wav bistream.gpu.compile_ahead: flow: 15 of 61 kernels compiled\n",
         "token2wav: flow: 15 of 61 kernels compiled"),
        ("2026-11-24 12:00:04,000 WARNING token2wav bistream.x: start: flow, 1.50 s\n", None),
        ("I1124 12:00:04 1 server.cc:674] loaded\n", None),
        ('{"event": "session_end"}\n', None),
    ],
)  # fmt: skip
def test_progress_of_a_start(line: str, progress: str | None) -> None:
    assert progress_in(line) == progress
