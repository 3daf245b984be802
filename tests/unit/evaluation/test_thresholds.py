"""``--fail-if``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import InvalidInputError
from bistream.evaluation.metrics import BY_NAME
from bistream.evaluation.statistics import Estimate
from bistream.evaluation.thresholds import parse_threshold

FORMS = ["reference", "one_shot", "word_by_word", "solver_steps=5"]


def means(**values: float) -> dict[str, dict[str, Estimate]]:
    return {name: {"wer": Estimate(value, value, value, 1)} for name, value in values.items()}


@given(st.sampled_from(FORMS), st.integers(0, 100), st.integers(0, 100), st.booleans())
def test_a_condition_holds_on_its_side_of_the_bound(form: str, percent: int, bound: int, is_above: bool) -> None:
    text = f"wer:{form}{'>' if is_above else '<'}{bound}%"
    failures = parse_threshold(text, FORMS).failures(means(**{form: percent / 100}))
    assert bool(failures) == (percent > bound if is_above else percent < bound)


def test_the_forms_that_are_meant() -> None:
    found = means(one_shot=0.02, word_by_word=0.04, **{"word_by_word-one_shot": 0.02})
    assert len(parse_threshold("wer>3%", FORMS).failures(found)) == 1
    assert "word_by_word is 4.00 %" in parse_threshold("wer > 0.03", FORMS).failures(found)[0]
    assert parse_threshold("word_by_word>5%", FORMS).failures(found) == []
    assert parse_threshold("word_by_word-one_shot>0.5%", FORMS).failures(found)
    assert parse_threshold("solver_steps=5-one_shot>0.5%", FORMS).failures(found) != []  # was not measured
    assert len(parse_threshold("dnsmos<2", FORMS).failures(found)) == 1  # nor was this
    assert parse_threshold("dnsmos:word_by_word-one_shot<-0.1", FORMS).metric is BY_NAME["dnsmos"]


@pytest.mark.parametrize("text", ["", "wer", "wer>", "wer>x", "mos>3", "wer:three_shot>1%", "one_shot-one_shot>1%", "wer=3%"])
def test_what_is_no_condition_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_threshold(text, FORMS)
    assert "\n" not in refused.value.sentence
