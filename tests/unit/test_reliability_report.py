"""The report about attacks (``tests/triton/reliability.py``): what it says comes from the attacks alone."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.triton.reliability import BROKEN, HELD, Attack, Table, report

WORDS = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8)
ATTACKS = st.builds(
    Attack, WORDS, WORDS, outcomes=st.dictionaries(WORDS, st.integers(1, 9)).map(Counter), verdict=st.sampled_from((HELD, BROKEN))
)


def made(attacks: list[Attack]) -> str:
    return report(attacks, "a command", "0123", "a machine", 90.0)


@given(st.lists(ATTACKS, max_size=5))
def test_each_attack_is_a_row_with_its_outcomes_and_verdict(attacks: list[Attack]) -> None:
    rows = [line.split(" | ") for line in made(attacks).splitlines() if line.startswith("| ")][-len(attacks) :] if attacks else []
    for row, attack in zip(rows, attacks, strict=True):
        assert row[0] == f"| {attack.name}" and row[-1] == f"{attack.verdict} |"
        assert sorted(row[2].split(", ")) == sorted(f"{count} {name}" for name, count in attack.outcomes.items()) or not attack.outcomes
    held = sum(attack.verdict == HELD for attack in attacks)
    assert f"{len(attacks)}; {held} held, {len(attacks) - held} did not hold or not finish" in made(attacks)


def test_tries_are_counted_with_their_outcomes() -> None:
    attack = Attack("an attack", "something")
    attack.got(["audio", "BUSY", "audio"])
    attack.remarks.append("a remark")
    attack.tables.append(Table("Numbers", ("one", "two"), [("1|2", "3")]))
    text = made([attack])
    assert "| an attack | 3 sessions | 2 audio, 1 BUSY; a remark |" in text
    assert "## Numbers" in text and "| 1\\|2 | 3 |" in text and "1.5 min" in text
