"""The plugin in the framework, before a gRPC server that speaks 20 ms for each character; what the framework's own plugin tests ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from livekit.agents import APIConnectionError, APIConnectOptions, APIError, APIStatusError, APITimeoutError, metrics, tts
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.plugins import bistream

from tests.unit.client.fake_server import SAMPLES_PER_CHARACTER, Behaviour, FakeServer, Reader, Received, Stream

WAIT_S = 20.0
AT_ONCE = APIConnectOptions(max_retry=3, retry_interval=0.0, timeout=WAIT_S)
PIECES = ("Hel", "lo wor", "ld, this is", "  a test.", " 你好，", "今天。")
Serve = Callable[[Behaviour], FakeServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[FakeServer] = []

    def start(behave: Behaviour) -> FakeServer:
        servers.append(FakeServer(behave))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


class Heard:
    """Everything that the framework hands to an agent."""

    def __init__(self, speech: tts.TTS[Any]) -> None:
        self.events: list[tts.SynthesizedAudio] = []
        self.metrics: list[metrics.TTSMetrics] = []
        self.errors: list[tts.TTSError] = []
        speech.on("metrics_collected", self.metrics.append)
        speech.on("error", self.errors.append)

    @property
    def samples(self) -> int:
        return sum(event.frame.samples_per_channel for event in self.events)

    @property
    def words(self) -> list[Any]:
        return [word for event in self.events for word in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])]


def in_loop(server: FakeServer, run: Callable[[bistream.TTS], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        speech = bistream.TTS(server.address, bistream.Speaker(speaker_id="anna"), **options)
        async with speech:
            return await run(speech)

    return asyncio.run(asyncio.wait_for(main(), WAIT_S))


def spoken(server: FakeServer, *pieces: str, conn_options: APIConnectOptions = AT_ONCE, **options: Any) -> Heard:
    async def run(speech: bistream.TTS) -> Heard:
        heard = Heard(speech)
        async with speech.stream(conn_options=conn_options) as stream:
            for piece in pieces:
                stream.push_text(piece)
                await asyncio.sleep(0)
            stream.end_input()
            async for event in stream:
                heard.events.append(event)
        return heard

    return in_loop(server, run, **options)  # type: ignore[no-any-return]


def texts(server: FakeServer) -> list[str]:
    return [one.inputs["target_text"].decode() for one in server.received if "target_text" in one.inputs]


def test_pieces_pass_through_unchanged_and_all_is_heard(serve: Serve) -> None:
    server = serve(Reader())
    heard = spoken(server, *PIECES)
    assert "".join(texts(server)) == "".join(PIECES) and len(texts(server)) > 2
    assert all(text in ("", *PIECES) for text in texts(server)[1:])
    assert heard.samples == len("".join(PIECES)) * SAMPLES_PER_CHARACTER
    assert len({(event.request_id, event.segment_id) for event in heard.events}) == 1
    assert [event.is_final for event in heard.events] == [False] * (len(heard.events) - 1) + [True]
    assert 0 < heard.events[-1].frame.duration < 0.25


def test_words_come_with_their_times(serve: Serve) -> None:
    heard = spoken(serve(Reader()), *PIECES)
    assert "".join(heard.words) == "".join(PIECES)
    times = [(word.start_time, word.end_time) for word in heard.words]
    assert times == sorted(times) and times[-1][1] == pytest.approx(0.02 * len("".join(PIECES).rstrip("。")))  # of its last letter
    assert [str(word) for word in heard.words[:2]] == ["Hello", " world,"] and times[1] == pytest.approx((0.12, 0.22))


def test_one_turn_is_one_metrics_event(serve: Serve) -> None:
    heard = spoken(serve(Reader()), *PIECES)
    (one,) = heard.metrics
    assert one.characters_count == len("".join(PIECES)) and one.ttfb > 0 and one.streamed and not one.cancelled
    assert one.audio_duration == pytest.approx(0.02 * len("".join(PIECES)))
    assert one.metadata is not None and one.metadata.model_provider == "bistream" and one.metadata.model_name == "cosyvoice2_bistream"


def test_a_whole_text_is_sent_as_a_whole(serve: Serve) -> None:
    server = serve(Reader())

    async def run(speech: bistream.TTS) -> Any:
        return await speech.synthesize("Hello there.", conn_options=AT_ONCE).collect()

    more = in_loop(server, run).samples_per_channel - 12 * SAMPLES_PER_CHARACTER
    assert 0 <= more <= 240  # the framework may mark the end by 10 ms of silence
    assert texts(server) == ["Hello there."] and server.received[0].flag("is_end")


@pytest.mark.parametrize("text", ["...", "?! "])
def test_punctuation_alone_is_a_short_silence(serve: Serve, text: str) -> None:
    heard = spoken(serve(Reader()), text)
    assert heard.samples == 2400 and not heard.errors


def test_a_pause_of_the_language_model_ends_nothing(serve: Serve) -> None:
    """Meanwhile nothing is open at the server, so no timer runs: no error, one turn, all text."""
    server = serve(Reader())

    async def run(speech: bistream.TTS) -> Heard:
        heard = Heard(speech)
        async with speech.stream(conn_options=AT_ONCE) as stream:
            stream.push_text("Let me see. ")
            while not (server.received and server.received[-1].flag("is_end")):
                await asyncio.sleep(0.01)
            assert await asyncio.to_thread(server.stream_gone.wait, WAIT_S)
            stream.push_text("Found it.")
            stream.end_input()
            async for event in stream:
                heard.events.append(event)
        return heard

    heard = in_loop(server, run, speak_after_s=0.1)
    assert heard.samples == len("Let me see. Found it.") * SAMPLES_PER_CHARACTER and not heard.errors and len(heard.metrics) == 1
    assert "".join(heard.words) == "Let me see. Found it."


def test_an_interruption_is_told_to_the_server(serve: Serve) -> None:
    server = serve(Reader())

    async def run(speech: bistream.TTS) -> Heard:
        heard = Heard(speech)
        stream = speech.stream(conn_options=AT_ONCE)
        stream.push_text("One two")
        async for _ in stream:
            await stream.aclose()
            break
        return heard

    heard = in_loop(server, run)
    assert "is_cancel" in server.received[-1].inputs and server.stream_gone.wait(WAIT_S)
    assert not heard.metrics and not heard.errors


class Refusing:
    """Refuses the first ``count`` starts."""

    def __init__(self, count: int, message: str) -> None:
        self.reader, self.count, self.message = Reader(), count, message

    def __call__(self, request: Received, stream: Stream) -> None:
        if self.count and "is_cancel" not in request.inputs and request.flag("is_start"):
            self.count -= 1
            stream.error(request.id, self.message)
        elif not self.count:
            self.reader(request, stream)


def test_a_server_that_is_full_is_asked_again_with_all_pieces(serve: Serve) -> None:
    server = serve(Refusing(2, "BUSY: All 3 sessions are taken; try again in 0.1 s. [retry_after_s 0.1]"))
    heard = spoken(server, *PIECES)
    assert [error.recoverable for error in heard.errors] == [True, True]
    assert heard.samples == len("".join(PIECES)) * SAMPLES_PER_CHARACTER and "".join(heard.words) == "".join(PIECES)


def test_retries_end(serve: Serve) -> None:
    with pytest.raises(APIStatusError) as raised:
        spoken(serve(Refusing(4, "BUSY: All 3 sessions are taken; try again later.")), "Hello.")
    assert raised.value.status_code == 429 and raised.value.retryable


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("UNKNOWN_SPEAKER: No voice is registered.", 404),
        ("INVALID_INPUT: top_k is 0; set it to 1 or more.", 400),
        ("UNAUTHENTICATED: x", 401),
    ],
)
def test_what_cannot_succeed_is_not_tried_again(serve: Serve, message: str, status: int) -> None:
    server = serve(Refusing(1, message))
    with pytest.raises(APIStatusError) as raised:
        spoken(server, "Hello.")
    assert raised.value.status_code == status and not raised.value.retryable and texts(server) == ["Hello."]
    assert "Traceback" not in str(raised.value)


def test_what_follows_a_pause_is_tried_again_within_the_turn(serve: Serve) -> None:
    """The framework repeats nothing once there was audio."""
    refusing = Refusing(0, "BUSY: All 3 sessions are taken; try again in 0.1 s. [retry_after_s 0.1]")
    server = serve(refusing)

    async def run(speech: bistream.TTS) -> Heard:
        heard = Heard(speech)
        async with speech.stream(conn_options=AT_ONCE) as stream:
            stream.push_text("So. ")
            while not (server.received and server.received[-1].flag("is_end")):
                await asyncio.sleep(0.01)
            refusing.count = 1
            stream.push_text("Yes.")
            stream.end_input()
            async for event in stream:
                heard.events.append(event)
        return heard

    heard = in_loop(server, run, speak_after_s=0.1)
    assert heard.samples == 8 * SAMPLES_PER_CHARACTER and not heard.errors


def test_a_server_that_is_not_there(serve: Serve) -> None:
    server = serve(Reader())
    server.stop()
    with pytest.raises(APIConnectionError, match="No server answers"):
        spoken(server, "Hello.", conn_options=APIConnectOptions(max_retry=1, retry_interval=0.0))


def test_a_server_that_says_nothing_is_a_timeout_for_every_attempt(serve: Serve) -> None:
    async def run(speech: bistream.TTS) -> Heard:
        heard = Heard(speech)
        with pytest.raises(APITimeoutError):
            async with speech.stream(conn_options=APIConnectOptions(max_retry=3, retry_interval=0.0, timeout=0.05)) as stream:
                stream.push_text("Hello.")
                stream.end_input()
                async for _ in stream:
                    pass
        return heard

    heard = in_loop(serve(lambda request, stream: None), run, speak_after_s=0.01)
    assert [error.recoverable for error in heard.errors] == [True, True, True, False]
    assert all(isinstance(error.error, APIError) for error in heard.errors)


def test_new_options_hold_for_the_next_turn(serve: Serve) -> None:
    server = serve(Reader())

    async def run(speech: bistream.TTS) -> None:
        speech.prewarm()
        await speech.synthesize("One.", conn_options=AT_ONCE).collect()
        speech.update_options(speaker=bistream.Speaker(speaker_id="bob", instruct_text="Whisper."))
        await speech.synthesize("Two.", conn_options=AT_ONCE).collect()

    in_loop(server, run)
    assert [one.inputs["speaker_id"] for one in server.received] == [b"anna", b"bob"]
    assert server.received[1].inputs["instruct_text"] == b"Whisper."


def test_every_session_has_the_lexicon_and_the_type_of_the_text(serve: Serve) -> None:
    server = serve(Reader())

    async def run(speech: bistream.TTS) -> None:
        speech.update_options(speaker=bistream.Speaker(speaker_id="anna", text_type="ssml", lexicon={"Nguyen": "win"}))
        for text in ("One.", '<break time="1s"/>Two.'):
            await speech.synthesize(text, conn_options=AT_ONCE).collect()

    in_loop(server, run)
    assert [one.inputs["text_type"] for one in server.received] == [b"ssml"] * 2
    assert [one.inputs["lexicon"] for one in server.received] == [b'{"Nguyen": "win"}'] * 2
