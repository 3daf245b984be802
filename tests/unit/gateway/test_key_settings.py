"""An API key may have a lexicon, which the gate adds to the starts with this key behind the request's own, and its audio marked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.contract.lexicon import MAX_ENTRIES, joined_lexicon
from bistream.text.respelling import ServerLexicon
from gateway.keys import Keys
from tests.unit.gateway.fakes import House, answers, told
from tests.unit.gateway.requests import OFFLINE, append, message, start
from tests.unit.gateway.rig import TIMEOUT_S, GateRig

KEY, OTHER = "k" * 16, "l" * 16
OF_KEY = {"SQL": "sequel", "Graz": "grahts"}
KEYS = Keys({KEY: "anna", OTHER: "bert"}, {"anna": json.dumps(OF_KEY)})
MARKED = Keys({KEY: "anna", OTHER: "bert"}, {"anna": json.dumps(OF_KEY)}, marked=["anna"])
LEXICONS = st.dictionaries(st.sampled_from("Graz SQL Nguyen 重庆".split()), st.sampled_from(("one", "two", "虫庆")))


def written(lexicon: dict[str, str]) -> str:
    return json.dumps(lexicon) if lexicon else ""


@settings(max_examples=60)
@given(own=LEXICONS, of_key=LEXICONS, of_server=LEXICONS)
def test_the_requests_own_entries_go_first_then_the_keys_then_the_servers(
    own: dict[str, str], of_key: dict[str, str], of_server: dict[str, str]
) -> None:
    respellings = ServerLexicon(of_server).with_own(joined_lexicon(written(own), written(of_key)))
    for phrase in (*own, *of_key, *of_server):
        assert respellings is not None
        assert respellings.find(phrase) == next(one[phrase] for one in (own, of_key, of_server) if phrase in one)
    assert (respellings is None) == (not own and not of_key and not of_server)


async def lexicon_of(house: House, key: str, **values: Any) -> dict[str, str] | None:
    """What the server is told with a start."""
    await house.client(key=key).send(start("one", "x", **values))
    raw = house.last.tensors(0).get("lexicon")
    lexicon: dict[str, str] | None = None if raw is None else json.loads(raw[4:])
    return lexicon


async def test_a_start_with_the_key_has_its_lexicon_behind_its_own() -> None:
    house = House(keys=KEYS)
    assert await lexicon_of(house, KEY) == OF_KEY
    assert await lexicon_of(House(keys=KEYS), KEY, lexicon='{"SQL": "squeal"}') == {**OF_KEY, "SQL": "squeal"}
    assert await lexicon_of(house, OTHER, lexicon='{"SQL": "squeal"}') == {"SQL": "squeal"}
    assert await lexicon_of(House(keys=KEYS), OTHER) is None


async def test_a_later_piece_has_none() -> None:
    house = House(keys=MARKED)
    client = house.client(key=KEY)
    await client.send(start("one", "x"))
    await client.send(append("one", "y"))
    for name in ("lexicon", "is_marked"):
        assert name in house.last.tensors(0) and name not in house.last.tensors(1)


@pytest.mark.parametrize("asked", [None, False, True])
async def test_the_audio_of_a_marked_key_is_marked_whatever_the_start_says(asked: bool | None) -> None:
    values: dict[str, Any] = {} if asked is None else {"is_marked": asked}
    for key, is_marked in ((KEY, True), (OTHER, bool(asked))):
        house = House(keys=MARKED)
        await house.client(key=key).send(start("one", "x", **values))
        assert house.last.tensors(0).get("is_marked", b"\0") == (b"\1" if is_marked else b"\0")


@pytest.mark.parametrize(
    ("requested", "of_server", "is_raw"),
    [
        ("raw", "off", True), (None, "raw", True), ("+markdown", "raw", True),
        ("off", "raw", False), (None, "off+markdown", False), ("+markdown", "off", False),
    ],
)  # fmt: skip
async def test_raw_text_which_may_have_none_is_left_without(requested: str | None, of_server: str, is_raw: bool) -> None:
    house = House(keys=KEYS)
    house.upstream.text_normalization = of_server
    values = {} if requested is None else {"text_normalization": requested}
    assert await lexicon_of(house, KEY, **values) == (None if is_raw else OF_KEY)


async def test_a_lexicon_that_is_too_large_with_the_keys_is_refused() -> None:
    house = House(keys=KEYS)
    client = house.client(key=KEY)
    await client.send(start("one", "x", lexicon=json.dumps({f"word{index}": "b" for index in range(MAX_ENTRIES)})))
    refusal, final = await answers(client, 2)
    assert told(refusal) == ("start", "INVALID_INPUT") and "more than 1000 entries" in str(refusal.error)
    assert told(final) == ("start", "final") and not house.upstream.streams


def test_a_whole_text_in_one_call_has_it_too() -> None:
    with GateRig(keys=MARKED) as rig:
        channel, stub = rig.stub()
        with channel:
            stub.ModelInfer(message(OFFLINE, target_text="x"), timeout=TIMEOUT_S, metadata=[("x-api-key", KEY)])
        (request,) = rig.server.unary_requests
        raw = {tensor.name: raw for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)}
        assert json.loads(raw["lexicon"][4:]) == OF_KEY and raw["is_marked"] == b"\1"
