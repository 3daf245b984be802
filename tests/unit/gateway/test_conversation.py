"""What one client's stream sees of its sessions, against a server that the test plays."""

from __future__ import annotations

import asyncio

import pytest

from bistream.errors import EngineError, UnknownSessionError
from gateway.keys import Keys
from gateway.settings import GateLimits
from tests.unit.gateway.fakes import House, answers, settle, told
from tests.unit.gateway.requests import OFFLINE, append, cancel, request, start

KEYS = Keys({"k" * 16: "anna", "l" * 16: "bert"})


async def test_the_servers_errors_come_with_the_clients_id() -> None:
    house = House()
    client = house.client()
    await client.send(start("mine", "x", is_end=True))
    own_id = house.last.tensors()["session_id"][4:].decode()
    house.last.error(f"UNKNOWN_SPEAKER: Nobody. [session {own_id}]")
    house.last.final()
    error, final = await answers(client, 2)
    assert error.error is not None and error.error.session_id == "mine" and error.error.code == "UNKNOWN_SPEAKER"
    assert told(final) == ("start", "final")


@pytest.mark.parametrize("words", ["Stub process 'llm_bistream_0_0' is not healthy.", "Failed, see /srv/model.py(40)"])
async def test_words_of_triton_itself_stay_inside(words: str) -> None:
    house = House()
    client = house.client()
    await client.send(start("mine", "x"))
    house.last.front_end_error(words)
    error, final = await answers(client, 2)
    assert error.error is not None and error.error.code == "ENGINE_ERROR" and words not in error.error.sentence
    assert told(final) == ("start", "final") and len(house.gate.sessions) == 0


async def test_a_stranger_does_not_know_the_session() -> None:
    house = House()
    owner, stranger = house.client(), house.client("10.0.0.2")
    await owner.send(start("mine", "x"))
    for attack in (append("mine", "intruder"), cancel("mine")):
        await stranger.send(attack)
        error, _ = await answers(stranger, 2)
        assert isinstance(error.error, UnknownSessionError)
    await settle()
    assert len(house.last.sent) == 1  # the start
    await stranger.send(start("mine", "y"))  # the same word is another session
    assert len(house.upstream.streams) == 2


async def test_streams_of_one_key_share_their_sessions() -> None:
    house = House(keys=KEYS)
    first, second, other = house.client(key="k" * 16), house.client(key="k" * 16), house.client(key="l" * 16)
    await first.send(start("mine", "x"))
    stream = house.last
    await second.send(append("mine", "more"))
    stream.final("1")
    assert [told(answer) for answer in await answers(second, 1)] == [("append", "final")]
    await other.send(append("mine", "more"))
    assert told((await answers(other, 2))[0]) == ("append", "UNKNOWN_SESSION")
    await second.send(start("mine", "y"))
    assert told((await answers(second, 2))[0]) == ("start", "SESSION_EXISTS")
    second.close()  # took part only
    await settle()
    assert not stream.is_cancelled
    first.close()
    await settle()
    assert stream.is_asked_to_cancel


@pytest.mark.parametrize("spoken", [False, True])
@pytest.mark.parametrize("draining", [False, True])
async def test_a_server_that_is_lost_gives_every_session_one_error(spoken: bool, draining: bool) -> None:
    house = House()
    client = house.client()
    await client.send(start("a", "x"))
    await client.send(start(None, "y", is_end=True, request_id="whole"))
    if spoken:
        for stream in house.upstream.streams:
            stream.audio()
        await answers(client, 2)
    house.gate.is_draining = draining
    for stream in house.upstream.streams:
        stream.lose()
    came = await answers(client, 4)
    code = "SHUTTING_DOWN" if draining else "ENGINE_ERROR"
    assert [told(answer) for answer in came] == [("start", code), ("start", "final"), ("whole", code), ("whole", "final")]
    assert [answer.error.session_id for answer in came if answer.error] == ["a", None]
    client.end_of_requests()
    assert await client.next_answer() is None


async def test_a_late_append_is_told_how_the_session_ended() -> None:
    house = House()
    client = house.client()
    endings = {"a": "CANCELLED", "b": "", "c": "UNKNOWN_VOICE", "d": "ENGINE_ERROR", "e": "SESSION_TIMEOUT"}
    for name, ending in endings.items():
        await client.send(start(name, "x"))
        if ending:
            house.last.error(f"{ending}: It ended.")
        house.last.final()
        await answers(client, 2 if ending else 1)
        await client.send(append(name, "late"))
        assert told((await answers(client, 2))[0]) == ("append", ending or "UNKNOWN_SESSION")


async def test_a_late_append_is_told_what_the_gate_ended_the_session_with() -> None:
    house = House(GateLimits(max_silence_s=30))
    client = house.client()
    await client.send(start("silent", ""))
    house.clock.now += 31
    house.gate.sweep()
    await client.send(start("lost", "x"))
    house.last.lose()
    await answers(client, 4)
    for name, code in (("silent", "SESSION_TIMEOUT"), ("lost", "ENGINE_ERROR")):
        await client.send(append(name, "late"))
        assert told((await answers(client, 2))[0]) == ("append", code)


async def test_a_session_of_a_key_whose_stream_is_gone_was_cancelled() -> None:
    house = House(keys=KEYS)
    first, second = house.client(key="k" * 16), house.client(key="k" * 16)
    await first.send(start("mine", "x"))
    first.close()
    await second.send(append("mine", "late"))
    assert told((await answers(second, 2))[0]) == ("append", "CANCELLED")


async def test_an_id_is_free_again_when_its_start_was_refused() -> None:
    """A client that is told UNKNOWN_VOICE starts again at once, before the server has closed the refused session."""
    house = House()
    client = house.client()
    await client.send(start("mine", "x"))
    await client.send(append("mine", "more"))
    refused = house.last
    refused.error("UNKNOWN_VOICE: Send the recording.")
    assert told((await answers(client, 1))[0]) == ("start", "UNKNOWN_VOICE")
    await client.send(start("mine", "x", is_end=True))
    assert house.last is not refused
    refused.error("UNKNOWN_VOICE: Send the recording.", "1")
    for request_id in ("0", "1"):
        refused.final(request_id)
    house.last.audio()
    house.last.final()
    came = [told(answer) for answer in await answers(client, 5)]
    assert came == [("append", "UNKNOWN_VOICE"), ("start", "final"), ("append", "final"), ("start", "audio"), ("start", "final")]
    client.end_of_requests()
    assert await client.next_answer() is None
    await settle()
    assert refused.is_finished and len(house.gate.sessions) == 0 and house.gate.admission.sessions == 0


async def test_silence_ends_a_session_and_empty_pieces_do_not_renew_it() -> None:
    house = House(GateLimits(max_silence_s=30))
    client = house.client()
    await client.send(start("a", "Hello"))
    for piece in ("", "  ", "...", "\u3000", b"\xe4\xbd"):
        house.clock.now += 7
        await client.send(append("a", piece))
    house.gate.sweep()
    came = await answers(client, 12)
    await settle()
    assert told(came[0]) == ("start", "SESSION_TIMEOUT") and house.last.is_asked_to_cancel
    assert len(house.gate.sessions) == 0


@pytest.mark.parametrize("name", ["mine", None])
async def test_triton_is_asked_to_cancel_what_ends_early(name: str | None) -> None:
    """Its streams are not reset: in the moment of an answer that can end the server."""
    house = House()
    client = house.client()
    await client.send(start(name, "x", is_end=name is None))
    stream = house.last
    stream.audio()
    given = stream.tensors(0)["session_id"]
    client.close()
    await settle()
    assert stream.is_asked_to_cancel and stream.tensors()["session_id"] == given and not stream.is_cancelled
    assert b"mine" not in given


@pytest.mark.parametrize("sign", ["text", "audio", "half a character"])
async def test_speakable_text_and_audio_renew_a_session(sign: str) -> None:
    house = House(GateLimits(max_silence_s=30))
    client = house.client()
    await client.send(start("a", "Hello" if sign != "half a character" else b"\xe4"))
    house.clock.now += 29
    if sign == "audio":
        house.last.audio()
    else:
        await client.send(append("a", "more" if sign == "text" else b"\xbd\xa0"))
    await settle()
    house.clock.now += 29
    house.gate.sweep()
    assert len(house.gate.sessions) == 1
    house.clock.now += 2
    house.gate.sweep()
    assert len(house.gate.sessions) == 0


async def test_a_session_whose_text_has_ended_may_take_its_time() -> None:
    house = House(GateLimits(max_silence_s=30))
    client = house.client()
    await client.send(start("a", "Hello", is_end=True))
    await client.send(request(model=OFFLINE, target_text="Hello"))
    house.clock.now += 300
    house.gate.sweep()
    assert len(house.gate.sessions) == 2


async def test_audio_that_nobody_reads_is_bounded() -> None:
    house = House(GateLimits(max_unread_audio_s=5))
    client = house.client()
    await client.send(start("greedy", "x"))
    greedy = house.last
    await client.send(start("other", "y", request_id="other"))
    house.last.audio(seconds=2)
    for _ in range(6):
        greedy.audio(seconds=1)
    await settle()
    assert greedy.is_asked_to_cancel and not house.last.is_finished
    came = [told(answer) for answer in await answers(client, 3)]
    assert sorted(came) == [("other", "audio"), ("start", "CANCELLED"), ("start", "final")]


async def test_text_over_the_limit_is_refused_and_the_session_goes_on() -> None:
    house = House(GateLimits(max_text_bytes=10))
    client = house.client()
    await client.send(start("a", "12345"))
    await client.send(append("a", "123456"))
    error, _ = await answers(client, 2)
    assert told(error) == ("append", "INVALID_INPUT") and error.error is not None and error.error.session_id == "a"
    await client.send(append("a", "12345"))
    await settle()
    assert len(house.last.sent) == 2


async def test_too_many_unanswered_requests_are_not_read() -> None:
    house = House(GateLimits(max_unanswered=4))
    client = house.client()
    await client.send(start("a", "x"))
    for number in range(4):
        await client.send(append("a", "x", request_id=str(number)))
    waiting = asyncio.create_task(client.send(append("a", "x")))
    await settle()
    assert not waiting.done() and len(house.last.sent) == 5
    house.last.final("1")
    await waiting
    await settle()
    assert len(house.last.sent) == 6


async def test_a_client_that_takes_no_answer_is_not_read_and_ended_in_the_end() -> None:
    house = House(GateLimits(max_unanswered=4, stall_timeout_s=120))
    client = house.client()
    for number in range(2):
        await client.send(append("nobody", "x", request_id=str(number)))
    waiting = asyncio.create_task(client.send(append("nobody", "x")))
    await settle()
    assert not waiting.done()
    house.clock.now += 119
    house.gate.sweep()
    assert not waiting.done()
    house.clock.now += 2
    house.gate.sweep()
    await waiting
    assert await client.next_answer() is None and not house.gate.streams


async def test_a_stream_without_a_session_is_ended_after_very_long() -> None:
    house = House(GateLimits(idle_stream_timeout_s=600))
    silent, idle, busy = house.client(), house.client(), house.client()
    await busy.send(start("a", "x", is_end=True))
    await idle.send(append("nobody", "x"))
    await answers(idle, 2)
    closed: list[str] = []
    silent.on_close = lambda: closed.append("silent")
    idle.on_close = lambda: closed.append("idle")
    busy.on_close = lambda: closed.append("busy")
    house.clock.now += 61
    house.gate.sweep()
    assert closed == ["silent"], "it has asked nothing yet: perhaps with half a message"
    house.clock.now += 540
    house.gate.sweep()
    assert closed == ["silent", "idle"]


async def test_a_text_that_wants_more_needs_an_id() -> None:
    house = House()
    client = house.client()
    for wrong in (start(None, "x"), request(target_text="x", is_start=False), request(is_cancel=True)):
        await client.send(wrong)
        assert (await answers(client, 2))[0].error.code == "INVALID_INPUT"  # type: ignore[union-attr]
    assert not house.upstream.streams


async def test_nothing_is_started_without_a_server() -> None:
    house = House()
    house.upstream.is_ready = False
    client = house.client()
    await client.send(start("a", "x"))
    error, _ = await answers(client, 2)
    assert isinstance(error.error, EngineError) and not house.upstream.streams and house.gate.admission.sessions == 0


@pytest.mark.parametrize("hurry", [False, True])
async def test_a_drain_ends_what_does_not_end(hurry: bool) -> None:
    house = House()
    client = house.client()
    await client.send(start("a", "x"))
    hurried = asyncio.Event()
    draining = asyncio.create_task(house.gate.drain(60.0, hurried))
    await settle()
    if hurry:
        hurried.set()
    else:
        house.clock.now += 61
    await draining
    assert [told(answer) for answer in await answers(client, 2)] == [("start", "SHUTTING_DOWN"), ("start", "final")]
