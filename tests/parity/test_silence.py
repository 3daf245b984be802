"""The thinning of silence between language model and flow, and that it does not depend on how the tokens arrive."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.text2token.silence import LONGEST_RUN, SilenceThinning
from tests.parity import golden

GOLDEN: dict[str, Any] = golden.COSYVOICE3_SET.read_json("silence.json")


def test_which_tokens_are_silent() -> None:
    assert COSYVOICE3.silent_tokens == set(GOLDEN["silent_tokens"])
    assert LONGEST_RUN == GOLDEN["longest_run_kept"]
    assert not COSYVOICE2.silent_tokens


@pytest.mark.parametrize("case", range(len(GOLDEN["cases"])))
def test_what_is_kept(case: int) -> None:
    tokens, expected = GOLDEN["cases"][case]["tokens"], tuple(GOLDEN["cases"][case]["expected"])
    assert SilenceThinning(COSYVOICE3.silent_tokens).push(tokens) == expected
    rng, thinning = random.Random(case), SilenceThinning(COSYVOICE3.silent_tokens)
    kept: list[int] = []
    while tokens:
        size = rng.randrange(4)
        kept += thinning.push(tokens[:size])
        tokens = tokens[size:]
    assert tuple(kept) == expected
    assert SilenceThinning(COSYVOICE2.silent_tokens).push(GOLDEN["cases"][case]["tokens"]) == tuple(GOLDEN["cases"][case]["tokens"])
