"""What the attacks on the server were and what came out, and the report about them: ``docs/log/reliability.md``.

A test with the marker ``attack`` gets an ``Attack`` by the fixture of the same name and adds to it. The report is made of these alone.
"""

from __future__ import annotations

import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from os.path import commonprefix
from pathlib import Path

UNFINISHED, HELD, BROKEN = "not finished", "held", "**did not hold**"
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Table:
    """Numbers of one attack that do not fit in its row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Attack:
    """One attack. ``tried``: how often. ``outcomes``: of its sessions or inputs. ``verdict``: the test's.

    ``is_reported``: the run writes the report, on a machine without other work; only there may a time decide.
    """

    name: str
    must_hold: str
    tried: int = 0
    unit: str = "sessions"
    outcomes: Counter[str] = field(default_factory=Counter)
    processes: str = ""
    remarks: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    verdict: str = UNFINISHED
    is_reported: bool = False

    def got(self, outcomes: Iterable[str]) -> None:
        """Count the outcomes of sessions or inputs, each of which is one try."""
        found = list(outcomes)
        self.tried += len(found)
        self.outcomes.update(found)


def report(attacks: Sequence[Attack], command: str, commit: str, machine: str, duration_s: float) -> str:
    """The whole document, Markdown."""
    broken = sum(attack.verdict != HELD for attack in attacks)
    parts = [
        "# Reliability",
        "Attacks on a real server (tiny random weights in the real format), by the tests that write this page; do not edit it.",
        f"{len(attacks)} attacks: {len(attacks) - broken} held, {broken} did not hold or not finish. Commit {commit}, "
        f"{duration_s / 60:.0f} minutes on {machine}, command `{command}`.",
        "Outcomes: `audio`, a session with all its audio; `answer`, a valid response; `accepted`, an empty one; a word in capitals, the "
        "error's code (over HTTP the status); `BROKEN`, a stream that ended with a status; `dropped`, a session that its client left. "
        "In bold the attack and the condition; an attack that did not hold or did not finish is marked.",
    ]
    for must_hold, group in groupby(attacks, key=lambda attack: attack.must_hold):
        same = list(group)
        common, names = _factored([attack.name for attack in same])
        processes = {attack.processes for attack in same}
        shared = f" Processes: {processes.pop()}." if len(processes) == 1 and processes != {""} else ""
        alike: dict[str, list[str]] = {}
        for attack, name in zip(same, names, strict=True):
            alike.setdefault(_outcome(attack, with_processes=not shared), []).append(name)
        lines = [f"- {'; '.join(those)}: {outcome}" if any(those) else f"- {outcome}" for outcome, those in alike.items()]
        parts += [f"**{common}:** {must_hold}.{shared}", "\n".join(lines)]
    for attack in attacks:
        for table in attack.tables:
            parts += [f"## {table.title}", _table(table.columns, table.rows)]
    return "\n\n".join(parts) + "\n"


def _outcome(attack: Attack, with_processes: bool) -> str:
    outcomes = ", ".join(f"{count} {name}" for name, count in attack.outcomes.most_common())
    tried = "" if attack.tried == attack.outcomes.total() else f"{attack.tried} {attack.unit}, "
    marks = [] if attack.verdict == HELD else [attack.verdict]
    processes = [f"processes: {attack.processes}"] if with_processes and attack.processes else []
    return "; ".join([tried + outcomes, *attack.remarks, *processes, *marks])


def _factored(names: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The words with which all names begin and end, with … between them, and the rest of each; of equal names, all of it and the run."""
    if len(set(names)) == 1:
        return names[0], [f"run {number}" if len(names) > 1 else "" for number in range(1, len(names) + 1)]
    words = [name.split(" ") for name in names]
    first = len(commonprefix(words))
    rests = [some[first:] for some in words]
    last = min(len(commonprefix([some[::-1] for some in rests])), min(map(len, rests)) - 1)
    ends = rests[0][len(rests[0]) - last :]
    return " ".join([*words[0][:first], "…", *ends]), [" ".join(some[: len(some) - last]).rstrip(",") for some in rests]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("|" + "|".join(cell.replace("|", "\\|") for cell in line) + "|" for line in lines)


def commit_name() -> str:
    """The commit of the working tree, and whether files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (", with changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine_name(load_before: float) -> str:
    """Processor, cores, memory, kernel; with the load by others when the run began."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    gibibytes = int(fields["MemTotal"].split()[0]) / 2**20
    models = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if "model name" in line]
    model = models[0] if models else platform.machine()
    return f"{len(models)} cores of {model}, {gibibytes:.0f} GiB, Python {platform.python_version()}; load average before {load_before:.1f}"
