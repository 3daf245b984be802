"""The service in a pipeline of the framework's test utilities, before a gRPC server that speaks 20 ms for each character."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, cast

import pytest
from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.metrics.metrics import TTFBMetricsData, TTSUsageMetricsData
from pipecat.pipeline.worker import PipelineParams
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TextAggregationMode
from pipecat.tests.utils import SleepFrame, run_test
from pipecat.utils.errors import ErrorCategory
from pipecat_bistream import BistreamTTSService, Speaker

from tests.unit.client.fake_server import SAMPLES_PER_CHARACTER, Behaviour, FakeServer, Reader, Received, Stream

WAIT_S = 30.0
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


def until(condition: Callable[[], Any]) -> Iterator[Frame]:
    """Holds back the frames behind it."""
    while not condition():
        yield SleepFrame(sleep=0.01)


class Heard:
    """The frames behind the service, and those before it."""

    def __init__(self, down: Sequence[Frame], up: Sequence[Frame]) -> None:
        self.down, self.up = down, up

    def of(self, kind: type) -> list[Any]:
        return [frame for frame in (*self.down, *self.up) if isinstance(frame, kind)]

    @property
    def samples(self) -> float:
        return sum(len(frame.audio) / 2 for frame in self.of(TTSAudioRawFrame))

    @property
    def words(self) -> list[str]:
        return [frame.text for frame in self.of(TTSTextFrame)]

    def metrics(self, kind: type) -> list[Any]:
        return [data for frame in self.of(MetricsFrame) for data in frame.data if isinstance(data, kind)]


def spoken(server: FakeServer, frames: Iterable[Frame], rate: int = 24000, speaker: Speaker | None = None, **options: Any) -> Heard:
    async def main() -> Heard:
        service = BistreamTTSService(server.address, speaker or Speaker(speaker_id="anna"), **options)
        params = PipelineParams(audio_out_sample_rate=rate, enable_metrics=True, enable_usage_metrics=True)
        # The frames are made while the pipeline runs.
        return Heard(*await run_test(service, frames_to_send=cast(Any, frames), pipeline_params=params, start_timeout=WAIT_S))

    return asyncio.run(asyncio.wait_for(main(), WAIT_S))


def turn(*pieces: str) -> list[Frame]:
    return [LLMFullResponseStartFrame(), *map(LLMTextFrame, pieces), LLMFullResponseEndFrame()]


def texts(server: FakeServer) -> list[str]:
    return [one.inputs["target_text"].decode() for one in server.received if "target_text" in one.inputs]


def test_pieces_pass_through_unchanged_and_all_is_heard(serve: Serve) -> None:
    server = serve(Reader())
    heard = spoken(server, turn(*PIECES))
    assert "".join(texts(server)) == "".join(PIECES)
    assert heard.samples == len("".join(PIECES)) * SAMPLES_PER_CHARACTER and not heard.of(ErrorFrame)
    kinds = (LLMFullResponseStartFrame, TTSStartedFrame, TTSAudioRawFrame, TTSStoppedFrame, LLMFullResponseEndFrame)
    order = [kinds.index(type(frame)) for frame in heard.down if type(frame) in kinds]
    assert order == sorted(order) and set(order) == set(range(5)) and order.count(3) == 1


def test_words_are_told_as_they_are_heard(serve: Serve) -> None:
    heard = spoken(serve(Reader()), turn(*PIECES))
    assert "".join(heard.words).replace(" ", "") == "".join(PIECES).replace(" ", "")
    assert heard.words[:2] == ["Hello", "world,"]
    times = [frame.pts for frame in heard.of(TTSTextFrame)]
    assert times == sorted(times) and times[-1] - times[0] >= 0.02e9 * (len("".join(PIECES)) - len("今天。"))
    assert [frame.includes_inter_frame_spaces for frame in heard.of(TTSTextFrame)[-4:]] == [True] * 4


def test_a_turn_has_its_metrics(serve: Serve) -> None:
    heard = spoken(serve(Reader()), turn(*PIECES))
    assert [data.value for data in heard.metrics(TTSUsageMetricsData)] == [len("".join(PIECES))]
    (first,) = [data for data in heard.metrics(TTFBMetricsData) if data.value > 0]
    assert first.model == "cosyvoice2_bistream"


def test_another_rate_is_resampled(serve: Serve) -> None:
    heard = spoken(serve(Reader()), turn("Hello " * 20), rate=16000)
    assert {frame.sample_rate for frame in heard.of(TTSAudioRawFrame)} == {16000}
    assert heard.samples == pytest.approx(120 * SAMPLES_PER_CHARACTER * 2 / 3, rel=0.05)


def test_a_text_of_its_own_is_sent_as_a_whole(serve: Serve) -> None:
    server = serve(Reader())
    heard = spoken(server, [TTSSpeakFrame("Hello there.")])
    assert heard.samples == 12 * SAMPLES_PER_CHARACTER and heard.words == ["Hello", "there."]
    assert texts(server) == ["Hello there."] and server.received[0].flag("is_end")


def test_sentences_where_the_user_wants_them(serve: Serve) -> None:
    server = serve(Reader())
    spoken(server, turn("One. ", "Two. Th", "ree."), text_aggregation_mode=TextAggregationMode.SENTENCE)
    assert "".join(texts(server)) == "One. Two. Three. "


def test_punctuation_alone_is_a_short_silence(serve: Serve) -> None:
    """Three turns without audio would end the work of the service for good."""
    heard = spoken(serve(Reader()), [frame for _ in range(4) for frame in turn("...")] + turn("Yes."))
    assert heard.samples == 4 * 2400 + 4 * SAMPLES_PER_CHARACTER and not heard.of(ErrorFrame)


def test_a_pause_of_the_language_model_ends_nothing(serve: Serve) -> None:
    """What is there is spoken; nothing is open at the server meanwhile, and the turn is one for the framework."""
    server = serve(Reader())
    pause = until(lambda: server.received and server.received[-1].flag("is_end") and server.stream_gone.is_set())
    start, first, last, end = (
        LLMFullResponseStartFrame(),
        LLMTextFrame("Let me see. "),
        LLMTextFrame("Found it."),
        LLMFullResponseEndFrame(),
    )
    heard = spoken(server, chain([start, first], pause, [last, end]), speak_after_s=0.1)
    assert heard.samples == len("Let me see. Found it.") * SAMPLES_PER_CHARACTER
    assert heard.words == ["Let", "me", "see.", "Found", "it."] and not heard.of(ErrorFrame)
    assert len(heard.of(TTSStartedFrame)) == len(heard.of(TTSStoppedFrame)) == 1


def test_an_interruption_is_told_to_the_server_and_the_next_turn_is_spoken(serve: Serve) -> None:
    server = serve(Reader())
    cancelled = until(lambda: any("is_cancel" in one.inputs for one in server.received))
    started = until(lambda: server.received)
    interrupted = [LLMFullResponseStartFrame(), LLMTextFrame("One two")]
    heard = spoken(server, chain(interrupted, started, [InterruptionFrame()], cancelled, turn("Three.")))
    assert texts(server)[-1] == "Three." and heard.words[-1] == "Three." and not heard.of(ErrorFrame)


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


def test_a_server_that_is_full_is_asked_again(serve: Serve) -> None:
    server = serve(Refusing(1, "BUSY: All 3 sessions are taken; try again in 0.1 s. [retry_after_s 0.1]"))
    heard = spoken(server, turn("Hello."))
    assert heard.samples == 6 * SAMPLES_PER_CHARACTER and texts(server) == ["Hello.", "Hello."] and not heard.of(ErrorFrame)


@pytest.mark.parametrize(
    ("message", "category", "spoken_after"),
    [
        ("UNKNOWN_SPEAKER: No voice is registered.", ErrorCategory.INVALID_REQUEST, 0),
        ("UNAUTHENTICATED: Send an API key.", ErrorCategory.AUTHENTICATION, 0),
        ("INVALID_INPUT: The text is too long.", ErrorCategory.APPLICATION, 6),
        ("ENGINE_ERROR: The server failed.", ErrorCategory.SERVER, 6),
    ],
)
def test_an_error_ends_its_turn_and_only_what_is_permanent_the_service(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, message: str, category: ErrorCategory, spoken_after: int
) -> None:
    monkeypatch.setattr("pipecat_bistream.tts.RETRY_WAITS_S", ())
    server = serve(Refusing(1, message))
    failed = until(lambda: server.stream_gone.is_set())
    first = [LLMFullResponseStartFrame(), LLMTextFrame("He")]
    heard = spoken(server, chain(first, failed, [LLMTextFrame("llo."), LLMFullResponseEndFrame()], turn("Again.")))
    errors = heard.of(ErrorFrame)
    assert errors[0].category is category and errors[0].error == message.partition(": ")[2]
    assert heard.samples == spoken_after * SAMPLES_PER_CHARACTER
    assert texts(server) == ["He", "Again."][: 2 if spoken_after else 1]  # what was written after the error is not spoken


def test_no_server_is_an_error_of_the_connection(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipecat_bistream.tts.RETRY_WAITS_S", (0.0,))
    server = serve(Reader())
    server.stop()
    heard = spoken(server, turn("Hello."))
    assert heard.of(ErrorFrame)[0].category is ErrorCategory.CONNECTIVITY and "No server answers" in heard.of(ErrorFrame)[0].error


def test_a_new_voice_holds_for_the_next_turn(serve: Serve) -> None:
    server = serve(Reader())
    update = TTSUpdateSettingsFrame(delta=TTSSettings(voice="bob"))
    spoken(server, chain(turn("One."), until(lambda: server.received), [update], turn("Two.")))
    assert [one.inputs["speaker_id"] for one in server.received if one.flag("is_start")] == [b"anna", b"bob"]


def test_every_session_has_the_lexicon_and_the_type_of_the_text(serve: Serve) -> None:
    server = serve(Reader())
    speaker = Speaker(speaker_id="anna", text_type="ssml", lexicon={"Nguyen": "win"})
    spoken(server, chain(turn("One."), turn('<break time="1s"/>', "Two.")), speaker=speaker)
    starts = [one.inputs for one in server.received if one.flag("is_start")]
    assert [(one["text_type"], one["lexicon"]) for one in starts] == [(b"ssml", b'{"Nguyen": "win"}')] * 2


def test_a_turn_that_never_ends_is_spoken_before_the_pipeline_ends(serve: Serve) -> None:
    heard = spoken(serve(Reader()), [LLMFullResponseStartFrame(), LLMTextFrame("Hello.")])
    assert heard.samples == 6 * SAMPLES_PER_CHARACTER and len(heard.of(TTSStoppedFrame)) == 1
