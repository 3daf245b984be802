"""Pronunciations and pauses that Deepgram's clients write into a text, whatever the cuts."""

from __future__ import annotations

import json
import urllib.parse
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.sync.client import connect

from bistream.errors import InvalidInputError
from interfaces.audio.formats import OutputFormat
from interfaces.core.text import Break, Item
from interfaces.protocols.deepgram import Deepgram, DeepgramOptions
from interfaces.protocols.deepgram_controls import MAX_PAUSES, DeepgramControls
from interfaces.protocols.deepgram_v1 import DeepgramV1
from tests.unit.interfaces.machine import Player
from tests.unit.interfaces.rig import SAMPLES_PER_CHARACTER, ReadyServer, Running
from tests.unit.interfaces.test_cartesia_tags import joined
from tests.unit.interfaces.test_http import error_of
from tests.unit.interfaces.test_vendor_http import deepgram

TOMATO, TOMAHTO = (json.dumps({"word": "tomato", "pronounce": said}, ensure_ascii=False) for said in ("təˈmeɪtoʊ", "təˈmɑːtəʊ"))
FLUX, AURA = r'\{"word": "Nguyen", "pronounce": "win"\}', '{"word":"Nguyen","pronounce":"win"}'
OTHERS = ["Hi ", "{", "}", "\\", '{"name": 1}', "{ }", "\\n", "pause:", '"word"', "你"]
WRITTEN = st.lists(st.sampled_from([FLUX, AURA, TOMATO, r"\{pause:500ms\}", *OTHERS]), max_size=MAX_PAUSES).map("".join)


def read(written: str, *places: int) -> list[Item] | str:
    """Or the sentence by which it is refused."""
    reader = DeepgramControls(is_http=True)
    try:
        items = [item for begin, end in pairwise([0, *places, len(written)]) for item in reader.push(written[begin:end])]
        return joined([*items, *reader.push("", is_whole=True)])
    except InvalidInputError as error:
        return error.sentence


@given(WRITTEN, st.data())
def test_the_cuts_do_not_matter(written: str, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    assert read(written, *places) == read(written)


@given(st.lists(st.sampled_from(OTHERS[:-3]), max_size=8).map("".join))
def test_other_braces_are_text(written: str) -> None:
    assert read(written) == ([written] if written else [])
    assert read(said := '{"word": "x", "count": 3} ' + written.rstrip()) == [said]


def test_a_word_is_respelled_and_a_pause_is_silence() -> None:
    assert read(f"Ask {FLUX} or {AURA}.") == ["Ask win or win."]
    assert read(r"One. \{pause:500ms\}Two.") == ["One. ", Break(500), "Two."]


@pytest.mark.parametrize(
    "wrong",
    [
        f"{TOMATO} {TOMAHTO}",
        '{"word": 5, "pronounce": "x"}',
    ]
    + ['{"word": "x", "pronounce": "-"}', r"\{pause:400ms\}", r"\{pause:500ms\}" * (MAX_PAUSES + 1)],
)
def test_what_cannot_be_said_is_refused_in_one_sentence_and_not_spoken(front: Running, wrong: str) -> None:
    answer = deepgram(front, "", f"Hi. {wrong}")
    assert answer[0] == 400 and error_of(answer)["param"] == "text"
    for protocol in (Deepgram, DeepgramV1):
        one = Player(protocol(DeepgramOptions("anna", OutputFormat(), 4096)))
        one.receive(json.dumps({"type": "Speak", "text": f"Hi. {wrong}"}))
        assert one.closed is not None and one.closed.code == 1008 and one.texts == {}


def test_pauses_are_for_http_alone(front: Running) -> None:
    status, _, data = deepgram(front, "&encoding=linear16&container=none&sample_rate=24000", r"One. \{pause:500ms\}Two.")
    assert status == 200 and len(data) == 2 * (SAMPLES_PER_CHARACTER * len("One. Two.") + 12000)
    one = Player(Deepgram(DeepgramOptions("anna", OutputFormat(), 4096)))
    one.receive(json.dumps({"type": "Speak", "text": r"One. \{pause:500ms\}"}))
    assert one.closed is not None and "over HTTP alone" in one.sent[-1]["description"]


def test_ipa_is_in_the_lexicon_over_http_alone(server: ReadyServer, front: Running) -> None:
    own = urllib.parse.quote(json.dumps({"tomato": "tomayto", "SQL": "sequel"}))
    assert deepgram(front, f"&lexicon={own}", f"One {TOMATO}, two {TOMATO}. SQL by {AURA}.")[0] == 200
    inputs = server.received[-1].inputs
    assert inputs["target_text"] == b"One tomato, two tomato. SQL by win."
    assert json.loads(inputs["lexicon"]) == {"tomato": {"alphabet": "ipa", "ph": "təˈmeɪtoʊ"}, "SQL": "sequel"}
    for protocol in (Deepgram, DeepgramV1):
        one = Player(protocol(DeepgramOptions("anna", OutputFormat(), 4096)))
        one.receive(json.dumps({"type": "Speak", "text": f"Hi. {TOMATO}"}))
        assert one.closed is not None and "over HTTP alone" in one.sent[-1]["description"] and one.texts == {}


@pytest.mark.parametrize("path", ["/v1/speak", "/v2/speak"])
def test_a_lexicon_of_the_address_counts_in_each_turn_of_a_socket(server: ReadyServer, front: Running, path: str) -> None:
    lexicon = json.dumps({"tomato": {"alphabet": "ipa", "ph": "təˈmeɪtoʊ"}})
    before = len(server.received)
    with connect(f"{front.ws}{path}?model=anna&speed=1.2&lexicon={urllib.parse.quote(lexicon)}") as socket:
        for text in ("One tomato.", "Two."):
            socket.send(json.dumps({"type": "Speak", "text": text}))
            socket.send('{"type": "Flush"}')
        socket.send('{"type": "Close"}')
        list(socket)  # until both are spoken
    starts = [one.inputs for one in server.received[before:] if "speaker_id" in one.inputs]
    assert [start["lexicon"] for start in starts] == [lexicon.encode()] * 2 and all("speed" in start for start in starts)


@pytest.mark.parametrize("protocol", [Deepgram, DeepgramV1])
def test_a_turn_in_pieces_has_its_controls_carried_out(protocol: Any) -> None:
    one = Player(protocol(DeepgramOptions("anna", OutputFormat(), 4096)))

    def say(*pieces: str) -> None:
        for piece in pieces:
            one.receive(json.dumps({"type": "Speak", "text": piece}))
        one.receive('{"type": "Flush"}')

    say(FLUX[:9], FLUX[9:], " speaks {")
    say("The next. ", AURA)  # waits for its turn
    first = one.opened[0].speech
    assert one.texts == {first: "win speaks {"} and one.ended == {first}
    told = one.finished(first)
    assert one.texts == {one.opened[1].speech: "The next. win"}
    if protocol is Deepgram:
        assert told[0]["controls_applied"]["pronunciations_applied"] == 1
