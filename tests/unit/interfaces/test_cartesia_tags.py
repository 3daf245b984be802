"""Breaks, speeds and spelling that Cartesia's clients write into a transcript, whatever the cuts."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.sync.client import connect

from bistream.errors import InvalidInputError
from interfaces.core.text import Break, Item, SpeedChange
from interfaces.protocols.cartesia import Cartesia
from interfaces.protocols.cartesia_tags import CartesiaTags
from tests.unit.interfaces.machine import Player
from tests.unit.interfaces.rig import SAMPLES_PER_CHARACTER, ReadyServer, Running
from tests.unit.interfaces.test_cartesia import send, times
from tests.unit.interfaces.test_http import ask, error_of
from tests.unit.interfaces.test_sockets import WAIT_S
from tests.unit.interfaces.vendors import CARTESIA, CARTESIA_SETTINGS

BREAK, SPEED = '<break time="1.5s"/>', '<speed ratio="1.2"/>'
WRITTEN = st.lists(
    st.sampled_from(
        [
            BREAK,
            SPEED,
            "<spell>",
            "</spell>",
            "<break time='300ms' />",
            '<volume ratio="2"/>',
            "<em>",
            "<",
            "&amp;",
            "a<b",
            "Hi ",
            "你",
            ">",
            "sp",
        ]
    ),
    max_size=12,
).map("".join)


def joined(items: list[Item]) -> list[Item]:
    """Without the cuts of the text."""
    found: list[Item] = []
    for item in items:
        if isinstance(item, str) and found and isinstance(found[-1], str):
            found[-1] += item
        else:
            found.append(item)
    return found


@given(WRITTEN, st.data())
def test_the_cuts_do_not_matter(written: str, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    reader = CartesiaTags()
    items = [item for begin, end in pairwise([0, *places, len(written)]) for item in reader.push(written[begin:end])]
    assert joined([*items, *reader.push("", is_whole=True)]) == joined(CartesiaTags().push(written, is_whole=True))


@given(WRITTEN)
def test_text_without_its_tags_is_unchanged(written: str) -> None:
    for tag in (BREAK, SPEED, "<spell>", "</spell>", "<break time='300ms' />", '<volume ratio="2"/>'):
        written = written.replace(tag, "")
    assert "".join(map(str, CartesiaTags().push(written, is_whole=True))) == written


def test_what_the_tags_mean() -> None:
    assert joined(CartesiaTags().push(f"One. {BREAK}Two {SPEED}<b>three</b>, 3 < 5 &amp; 7.", is_whole=True)) == [
        "One. ", Break(1500), "Two ", SpeedChange(1.2), "<b>three</b>, 3 < 5 &amp; 7.",
    ]  # fmt: skip
    assert "".join(map(str, CartesiaTags().push("It is <spell>a1-b</spell>!", is_whole=True))).split() == ["It", "is", "A", "1", "B", "!"]
    assert CartesiaTags().push('<emotion value="angry"/><volume ratio="0.5"/>No', is_whole=True) == ["No"]


@pytest.mark.parametrize(
    "wrong", ['<break time="1h"/>', '<break time="11s"/>', f"{BREAK * 81}", '<speed ratio="3"/>', '<speed ratio="fast"/>', "<speed/>"]
)
def test_wrong_tags_are_refused_in_one_sentence(wrong: str, front: Running) -> None:
    with pytest.raises(InvalidInputError):
        CartesiaTags().push(wrong, is_whole=True)
    one = Player(Cartesia())
    send(one, f"Hi {wrong}", **{"continue": True})
    assert one.sent[-1]["type"] == "error" and one.closed is None
    for path in ("/tts/bytes", "/tts/sse"):
        answer = ask(front, "POST", path, {**CARTESIA_SETTINGS, "transcript": f"Hi {wrong}"})
        assert answer[0] == 400 and error_of(answer)["param"] == "transcript"


def test_a_context_has_its_controls_and_the_words_without_them() -> None:
    one = Player(Cartesia())
    for piece in ("Now <bre", 'ak time="1s"/>then <spe', "ll>A", "B</spell>."):
        send(one, piece, add_timestamps=True, **{"continue": True})
    send(one, "3 <", **{"continue": False})
    assert Break(1000) in one.items and one.items[-1] == "3 <" and one.ended == {"1"}
    assert [word for word, _, _ in times(one.finished("1"))] == ["Now", "then", "A", "B", ".3", "<"]


def test_words_on_both_sides_of_a_break_are_two() -> None:
    one = Player(Cartesia())
    send(one, f"Hello.{BREAK}World", add_timestamps=True, **{"continue": False})
    assert [word for word, _, _ in times(one.finished("1"))] == ["Hello.", "World"]


def test_in_ssml_the_tags_are_the_servers() -> None:
    one = Player(Cartesia())
    send(one, f"Hi. {BREAK}", text_type="ssml")
    assert one.texts == {"1": f"Hi. {BREAK}"} and one.opened[0].values == {"text_type": "ssml"}


def starts(server: ReadyServer) -> list[Any]:
    return [one.inputs for one in server.received if one.flag("is_start") and "target_text" in one.inputs]


def test_a_break_is_exact_silence_and_a_speed_holds_for_what_follows(server: ReadyServer, front: Running) -> None:
    server.received.clear()
    transcript = f'One. {BREAK}<speed ratio="2"/>Two.'
    status, _, data = ask(front, "POST", "/tts/bytes", {**CARTESIA_SETTINGS, "transcript": transcript})
    first, silence = 2 * SAMPLES_PER_CHARACTER * len("One. "), 2 * 36000
    assert status == 200 and len(data) == first + silence + 2 * SAMPLES_PER_CHARACTER * len("Two.")
    assert not any(data[first : first + silence])
    assert [(one["target_text"], float(one["speed"].item()) if "speed" in one else None) for one in starts(server)] == [
        (b"One. ", None),
        (b"Two.", 2.0),
    ]


def test_the_socket_speaks_the_same(front: Running) -> None:
    audio = b""
    with connect(front.ws + CARTESIA) as socket:
        for piece in ("One.", " <br", 'eak time="1.5s"/>Two.', ""):
            socket.send(json.dumps({**CARTESIA_SETTINGS, "context_id": "c", "transcript": piece, "continue": piece != ""}))
        while (told := json.loads(socket.recv(timeout=WAIT_S)))["type"] != "done":
            audio += base64.b64decode(told["data"])
    assert len(audio) == 2 * SAMPLES_PER_CHARACTER * len("One. Two.") + 2 * 36000


def test_a_text_beyond_the_limit_is_refused_before_its_tags_are_read() -> None:
    one = Player(Cartesia(max_text_chars=40))
    send(one, "Hi. ", **{"continue": True})
    send(one, BREAK * 2, **{"continue": True})
    assert "longer than 40 characters" in one.sent[-1]["message"] and one.cancelled == ["1"] and one.items == ["Hi. "]
