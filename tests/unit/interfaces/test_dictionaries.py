"""Lexicons of the operator's, which clients ask for as the vendors' pronunciation dictionaries."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from bistream.errors import ConfigError, InvalidInputError
from gateway.keys import Keys
from interfaces.core.lexicons import Lexicons
from interfaces.protocols.elevenlabs import dictionaries_in
from tests.unit.interfaces.rig import ReadyServer, Running, running
from tests.unit.interfaces.test_http import ask, error_of
from tests.unit.interfaces.test_sockets import WAIT_S
from tests.unit.interfaces.vendors import CARTESIA, CARTESIA_SETTINGS, MULTI, SINGLE, begin, finish

MEDICAL: dict[str, Any] = {"SQL": "sequel", "Graz": "grahts", "重庆": {"alphabet": "pinyin", "ph": "chong2 qing4"}}
PLACES: dict[str, Any] = {"Graz": "grats", "Nguyen": "win"}
LEXICONS = Lexicons({"medical": json.dumps(MEDICAL), "places": json.dumps(PLACES)})


@pytest.fixture(scope="module")
def front(server: ReadyServer) -> Iterator[Running]:
    with running(server.address, lexicons=LEXICONS) as made:
        yield made


def locators(*names: str) -> list[dict[str, Any]]:
    return [{"pronunciation_dictionary_id": name, "version_id": "v1"} for name in names]


def over_http(door: str, *names: str, **own: Any) -> tuple[str, dict[str, Any]]:
    if door.startswith("/tts"):
        settings = {**CARTESIA_SETTINGS, "transcript": "Hi.", **own}
        return door, {**settings, "pronunciation_dict_id": names[0]} if names else settings
    return door, {"text": "Hi.", "pronunciation_dictionary_locators": locators(*names), **own}


HTTP = ["/v1/text-to-speech/anna", "/v1/text-to-speech/anna/stream/with-timestamps", "/tts/bytes", "/tts/sse"]


def lexicon_of(server: ReadyServer) -> dict[str, Any]:
    lexicon: dict[str, Any] = json.loads(server.received[-1].inputs["lexicon"])
    return lexicon


@pytest.mark.parametrize("door", HTTP)
def test_a_dictionary_is_a_lexicon_of_the_start_behind_the_requests_own(server: ReadyServer, front: Running, door: str) -> None:
    assert ask(front, "POST", *over_http(door, "medical"))[0] == 200
    assert lexicon_of(server) == MEDICAL
    assert ask(front, "POST", *over_http(door, "medical", lexicon={"SQL": "squeal"}))[0] == 200
    assert lexicon_of(server) == {**MEDICAL, "SQL": "squeal"}
    assert ask(front, "POST", *over_http(door))[0] == 200
    assert "lexicon" not in server.received[-1].inputs


@pytest.mark.parametrize("door", HTTP)
@pytest.mark.parametrize("name", ["other", "../medical", "x" * 100])
def test_an_unknown_dictionary_is_refused_in_one_sentence(front: Running, door: str, name: str) -> None:
    answer = ask(front, "POST", *over_http(door, name))
    assert answer[0] == 400
    error = error_of(answer)
    assert error["message"].startswith("There is no pronunciation dictionary ") and "pronunciation_dict" in error["param"]


def test_the_lexicon_of_a_key_counts_last(server: ReadyServer) -> None:
    """Behind the request's own and the dictionaries that it names."""
    keys = Keys({"a-key-of-ann": "ann", "a-key-of-bob": "bob"}, {"ann": json.dumps({"Graz": "of ann", "Wien": "veen"})})
    ann, bob = ({"xi-api-key": f"a-key-of-{name}"} for name in ("ann", "bob"))
    with running(server.address, keys=keys, lexicons=Lexicons({"places": json.dumps(PLACES)}, keys)) as front:
        for named, own, expected in (
            ((), {}, {"Graz": "of ann", "Wien": "veen"}),
            (("places",), {}, {**PLACES, "Wien": "veen"}),
            (("places",), {"lexicon": {"Wien": "vienna"}}, {**PLACES, "Wien": "vienna"}),
        ):
            assert ask(front, "POST", *over_http(HTTP[0], *named, **own), ann)[0] == 200
            assert lexicon_of(server) == expected
        assert ask(front, "POST", *over_http(HTTP[0], text_normalization="raw"), ann)[0] == 200
        assert "lexicon" not in server.received[-1].inputs
        assert ask(front, "POST", *over_http(HTTP[0]), bob)[0] == 200
        assert "lexicon" not in server.received[-1].inputs


def test_the_audio_of_a_marked_key_is_marked_whatever_the_request_says(server: ReadyServer) -> None:
    keys = Keys({"a-key-of-ann": "ann", "a-key-of-bob": "bob"}, marked=["ann"])
    with running(server.address, keys=keys, lexicons=Lexicons(keys=keys)) as front:
        for name, asked in itertools.product(("ann", "bob"), (False, True)):
            assert ask(front, "POST", *over_http(HTTP[0], is_marked=asked), {"xi-api-key": f"a-key-of-{name}"})[0] == 200
            start = server.received[-1]
            assert ("is_marked" in start.inputs and start.flag("is_marked")) == (asked or name == "ann")


def naming(path: str, *names: str) -> dict[str, Any]:
    return {"pronunciation_dict_id": names[0]} if path == CARTESIA else {"pronunciation_dictionary_locators": locators(*names)}


@pytest.mark.parametrize("path", [CARTESIA, SINGLE, MULTI])
def test_the_sockets_take_it_with_the_message_that_opens(server: ReadyServer, front: Running, path: str) -> None:
    first, *others = (json.loads(message) for message in begin(path, "Hi there. "))
    named = naming(path, "places", "medical")
    with connect(front.ws + path) as socket:
        for message in ({**first, **named}, *others, json.loads(finish(path))):
            socket.send(json.dumps(message))
        told: dict[str, Any] = {}
        while not told.get("isFinal") and told.get("type") != "done":
            told = json.loads(socket.recv(timeout=WAIT_S))
            assert "error" not in told.values()
    start = next(one for one in reversed(server.received) if one.flag("is_start") and "speaker_id" in one.inputs)
    assert json.loads(start.inputs["lexicon"]) == (PLACES if path == CARTESIA else {**MEDICAL, **PLACES})
    with connect(front.ws + path) as socket:
        socket.send(json.dumps({**first, **naming(path, "none")}))
        assert "There is no pronunciation dictionary 'none'" in socket.recv(timeout=WAIT_S)


@pytest.mark.parametrize("wrong", ["medical", [{}], ["medical"], locators("a", "b", "c", "d"), [{"pronunciation_dictionary_id": 5}]])
def test_wrong_locators_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="correct it"):
        dictionaries_in({"pronunciation_dictionary_locators": wrong})


def test_lexicons_are_the_files_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "medical.json").write_text(json.dumps(MEDICAL))
    (tmp_path / "notes.txt").write_text("none")
    keys = Keys({"a-key": "ann"}, {"ann": '{"Wien": "veen"}'})
    assert json.loads(str(Lexicons.read(tmp_path).added_to({}, ["medical"])["lexicon"])) == MEDICAL
    assert all("lexicon" in Lexicons.read(folder, keys).of_key({}, "ann") for folder in (None, tmp_path))
    with pytest.raises(InvalidInputError):
        Lexicons.read(None).added_to({}, ["medical"])


@pytest.mark.parametrize(("name", "text"), [("wrong.json", "[]"), ("two words.json", "{}")])
def test_a_wrong_file_keeps_the_process_from_starting(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=name):
        Lexicons.read(tmp_path)
    with pytest.raises(ConfigError, match="lexicons-folder"):
        Lexicons.read(tmp_path / "none")
