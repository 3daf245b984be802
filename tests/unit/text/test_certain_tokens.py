"""Which tokens of an unfinished piece are certain, for random vocabularies and all their texts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.models import BPE

from bistream.text.certain_tokens import Encoded, Vocabulary, certain_tokens

ALPHABET = "abc"
TEXTS = st.text(st.sampled_from(ALPHABET), max_size=12)


class Model:
    """A byte-pair encoding of its own merges, the earlier ones first."""

    def __init__(self, merges: list[tuple[str, str]]) -> None:
        entries = list(dict.fromkeys([*ALPHABET, *(left + right for left, right in merges)]))
        self.vocabulary = Vocabulary(entries)
        self._model = BPE(vocab={entry: index for index, entry in enumerate(entries)}, merges=merges)

    def encode(self, text: str) -> list[Encoded]:
        return [(token.id, len(token.value)) for token in self._model.tokenize(text)]

    def certain(self, known: str) -> list[Encoded]:
        return certain_tokens(self.vocabulary, self.encode, known)


@st.composite
def models(draw: st.DrawFn) -> Model:
    entries = list(ALPHABET)
    merges: list[tuple[str, str]] = []
    for _ in range(draw(st.integers(0, 10))):
        pair = draw(st.sampled_from(entries)), draw(st.sampled_from(entries))
        if pair not in merges:
            merges.append(pair)
            entries.append(pair[0] + pair[1])
    return Model(merges)


@settings(max_examples=100)
@given(model=models(), known=TEXTS, continuation=TEXTS)
def test_no_continuation_changes_them(model: Model, known: str, continuation: str) -> None:
    certain = model.certain(known)
    assert model.encode(known + continuation)[: len(certain)] == certain


@settings(max_examples=80)
@given(model=models(), known=TEXTS, continuation=TEXTS)
def test_more_text_never_makes_fewer_of_them(model: Model, known: str, continuation: str) -> None:
    certain = model.certain(known)
    assert model.certain(known + continuation)[: len(certain)] == certain


@settings(max_examples=80)
@given(model=models(), known=TEXTS)
def test_the_rest_goes_on_from_them_as_if_it_stood_alone(model: Model, known: str) -> None:
    certain = model.certain(known)
    start = sum(num_symbols for _, num_symbols in certain)
    assert certain + model.encode(known[start:]) == model.encode(known)


@given(known=TEXTS)
def test_all_are_certain_where_nothing_merges(known: str) -> None:
    model = Model([])
    assert model.certain(known) == model.encode(known)


def test_an_entry_that_may_still_come_holds_back_what_it_begins_with() -> None:
    model = Model([("a", "b"), ("ab", "c")])
    assert model.certain("a") == []
    assert model.certain("ab") == []
    assert model.certain("aba") == model.encode("ab")
    assert model.certain("abc") == model.encode("abc")
