"""An utterance may continue an earlier one of its caller: by the id of a request, by its text, or as the next turn of a socket."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from websockets.sync.client import connect

from bistream.contract.earlier_sessions import KEPT_S
from interfaces.core.caller import Caller
from interfaces.core.earlier import EarlierUtterances, name_of_text
from interfaces.core.service import SpeechService
from interfaces.core.trace import Trace
from interfaces.core.values import Values
from tests.unit.client.fake_server import FakeServer
from tests.unit.interfaces.rig import reading, running
from tests.unit.interfaces.test_speech import heard, run, service_for

CALLER = Caller("key", "10.0.0.1")


def caller_of(request_id: str) -> Caller:
    return Caller("key", "10.0.0.1", Trace(request_id))


def starts(server: FakeServer) -> list[tuple[str, str | None]]:
    """Id of each session, and of the one that it continues."""
    inputs = [one.inputs for one in server.received if one.flag("is_start")]
    return [(one["session_id"].decode(), one["continues"].decode() if "continues" in one else None) for one in inputs]


async def speak(service: SpeechService, text: str, caller: Caller, values: Values | None = None, is_flushed: bool = False) -> None:
    speech = service.open("anna", caller, values)
    await speech.append(text)
    if is_flushed:
        await speech.flush()
        await speech.append("More of it.")
    await speech.end()
    await heard(speech)


def test_by_the_id_of_a_request_by_a_text_and_after_a_flush() -> None:
    async def main(server: FakeServer) -> None:
        service = service_for(server.address)
        await speak(service, "First, it rains.", caller_of("one"), is_flushed=True)
        await speak(service, "By its id.", caller_of("two"), {"continues": "one"})
        await speak(service, "By its text.", caller_of("three"), {"continues": name_of_text("... by its ID ")})
        (first, none), (flushed, before), (second, by_id), (_, by_text) = starts(server)
        assert (none, before, by_id, by_text) == (None, first, flushed, second)

    with reading() as server:
        run(main(server))


@pytest.mark.parametrize("other", [Caller("else", "10.0.0.1"), Caller(None, "10.0.0.1"), Caller(None, "10.0.0.2")])
def test_another_callers_id_and_text_are_as_none(other: Caller) -> None:
    async def main(server: FakeServer) -> None:
        service = service_for(server.address)
        await speak(service, "First, it rains.", caller_of("one"))
        for name in ("one", name_of_text("First, it rains."), "nobody"):
            await speak(service, "Then.", other, {"continues": name})
        assert [continues for _, continues in starts(server)] == [None] * 4

    with reading() as server:
        run(main(server))


def test_another_server_knows_nothing_of_it_and_a_minute_is_enough() -> None:
    now = 0.0
    table = EarlierUtterances(lambda: now)
    session: Any = object()
    table.add(caller_of("one"), "It rains.", session)
    now = KEPT_S
    assert table.find(CALLER, "one") is session is table.find(CALLER, name_of_text("it rains"))
    now += 1.0
    assert table.find(CALLER, "one") is None


def test_contexts_of_a_socket_go_on_from_each_other_and_a_cancelled_one_is_left_out() -> None:
    with reading() as server, running(server.address) as gateway:
        with connect(f"{gateway.ws}/v1/text-to-speech/anna/multi-stream-input?output_format=pcm_24000") as socket:
            for context, ends in (("a", True), ("b", False), ("c", True)):
                socket.send(json.dumps({"context_id": context, "text": "Some words to say. ", "flush": ends}))
                if not ends:
                    received(socket, "audio")
                socket.send(json.dumps({"context_id": context, "close_context": True}))
                received(socket, "isFinal")
        (first, none), (_, second), (_, third) = starts(server)
        assert none is None and second == third == first


def received(socket: Any, name: str) -> None:
    while not json.loads(socket.recv(timeout=60)).get(name):
        pass


def test_elevenlabs_names_requests_by_the_header_of_their_answers() -> None:
    with reading() as server, running(server.address) as gateway:
        first = post(gateway.http, {"text": "It rains."})
        post(gateway.http, {"text": "And what comes after that?", "previous_request_ids": ["not one of ours", first]})
        post(gateway.http, {"text": "It stops.", "previous_text": "It rains. And what comes after that?"})
        post(gateway.http, {"text": "Alone.", "previous_text": "Never said.", "next_text": "Ignored."})
        (one, none), (two, by_id), (_, by_text), (_, unknown) = starts(server)
        assert (none, by_id, by_text, unknown) == (None, one, two, None)


def post(http: str, body: dict[str, Any]) -> str:
    """The id by which the answer names its request."""
    address = f"{http}/v1/text-to-speech/anna?output_format=pcm_24000"
    request = urllib.request.Request(address, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.read()
        return str(answer.headers["request-id"])
