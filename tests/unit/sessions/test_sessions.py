"""Sessions that end normally: audio complete and in order, however the text arrives."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from bistream.contract.audio import SILENCE_S
from bistream.errors import EngineError
from bistream.sessions.speaking import ANSWER_TIMEOUT_S
from bistream.token2wav.load_report import LoadReport
from bistream.types import FinishReason, GenerationOptions, SpeechTokens
from tests.formats import CHUNK_TOKENS, SAMPLE_RATE, SAMPLES_PER_TOKEN
from tests.unit.sessions.fakes import WAIT_S, append_request, start_request
from tests.unit.sessions.house import House, assert_whole, house_with, tokens_of


def test_one_request_is_one_session(house: House) -> None:
    text = "Hello world, this is one request."
    sender = house.send(start_request(text, session_id=None, text_normalization="en"))
    assert_whole(sender, text)
    assert house.models.language_model.starts[0].is_end
    assert house.models.language_model.starts[0].options.text_normalization == "en"
    assert house.models.language_model.starts[0].prompt_text == "Reference."
    assert house.models.held == 0
    assert house.orchestrator.open_sessions == 0
    assert house.models.language_model.counts["cancels"] == house.models.token2wav.cancels == 0, "the models end it by themselves"


@pytest.mark.parametrize("chunks_join", [False, True])
def test_hops_of_a_text_in_pieces_have_several_chunks_where_chunks_join(house: House, chunks_join: bool) -> None:
    house.models.token2wav.load = LoadReport(chunks_join=chunks_join)
    text = "A text in pieces, long enough for hops of more than one chunk each."
    sender = house.send(start_request(text[:12], is_end=False))
    house.send(append_request(text[12:], is_end=True))
    assert_whole(sender, text)
    longest = max(len(hop.token_ids) for hop in house.models.token2wav.hops)
    assert longest > 2 * CHUNK_TOKENS if chunks_join else longest < 2 * CHUNK_TOKENS


def test_text_that_arrives_while_the_voice_is_prepared_does_not_change_the_layout(house: House) -> None:
    """The choice of layout must not depend on timing: the start message has the first request's text and ``is_end`` only."""
    house.models.voice.gate = threading.Event()
    sender = house.send(start_request("Hello", is_end=False))
    assert house.models.voice.called.wait(WAIT_S)
    house.send(append_request(" wor"))
    house.send(append_request("ld.", is_end=True))
    house.models.voice.gate.set()
    assert_whole(sender, "Hello world.")
    assert (house.models.language_model.starts[0].text, house.models.language_model.starts[0].is_end) == (b"Hello", False)
    assert b"".join(text for text, _ in house.models.language_model.appends) == b" world."
    assert [is_end for _, is_end in house.models.language_model.appends][-1] is True


def test_text_that_comes_while_the_start_is_on_its_way_follows_it(house: House) -> None:
    model = house.models.language_model
    model.holds_start = threading.Event()
    sender = house.send(start_request("Hello", is_end=False))
    assert model.start_sent.wait(WAIT_S)
    house.send(append_request(" wor"))
    house.send(append_request("ld.", is_end=True))
    model.holds_start.set()
    assert_whole(sender, "Hello world.")
    assert model.appends == [(b" world.", True)] and model.counts["refusals"] == 0


def test_a_session_that_the_language_model_has_lost_ends(house: House) -> None:
    sender = house.send(start_request("Hello", is_end=False))
    model = house.models.language_model
    assert model.start_arrived.wait(WAIT_S)
    lost, model.open = model.open, {}
    house.send(append_request("more"))
    model.wait_counted("refusals")
    house.wait_until(lambda: not house.run().is_delivering, "the refusal did not arrive")
    house.clock.now += ANSWER_TIMEOUT_S
    house.orchestrator.watch()
    assert isinstance(sender.wait(), EngineError)
    for messages in lost.values():
        house.orchestrator._loop.call(messages.put_nowait, SpeechTokens((), 0, FinishReason.CANCELLED))
    house.wait_empty()


def test_the_first_chunk_is_small_and_the_first_hop_has_the_voice_and_the_seed(house: House) -> None:
    sender = house.send(start_request("Hello world, hello world, hello world.", options=GenerationOptions(seed=7)))
    sender.wait()
    first, *others = house.models.token2wav.hops
    assert (len(first.token_ids), first.audio.seed, first.playback_buffer_s) == (18, 7, 0.0)
    assert first.prompt is not None
    assert len(first.prompt.speech_tokens) == 25
    assert others
    assert all(hop.prompt is None for hop in others)
    assert [hop.finalize for hop in house.models.token2wav.hops] == [False] * len(others) + [True]
    assert others[0].playback_buffer_s == pytest.approx(len(sender.chunks[0].waveform) / SAMPLE_RATE)


@pytest.mark.parametrize("offline", [False, True])
def test_a_text_without_speech_is_a_short_silence(house: House, offline: bool) -> None:
    house.models.language_model.silent = True
    sender = house.send(start_request("...", session_id=None, is_offline=offline))
    assert sender.wait() is None
    (chunk,) = sender.chunks
    assert len(chunk.waveform) == round(SILENCE_S * SAMPLE_RATE) and not chunk.waveform.any()
    assert (chunk.text_consumed, chunk.text_position) == (3, 3)
    assert not house.models.token2wav.hops and not house.models.token2wav.speeds


@house_with(watermark="on_request")
@pytest.mark.parametrize("is_marked", [False, True])
@pytest.mark.parametrize("offline", [False, True])
def test_what_asks_for_the_watermark_says_so_to_token2wav(house: House, offline: bool, is_marked: bool) -> None:
    assert house.send(start_request("Hello world.", is_offline=offline, is_marked=is_marked)).wait() is None
    token2wav = house.models.token2wav
    assert (token2wav.marked if offline else [token2wav.hops[0].audio.is_marked]) == [is_marked]


@pytest.mark.parametrize("speed", [2.0, 1.0])
def test_offline_takes_the_whole_utterance_path(house: House, speed: float) -> None:
    text = "Hello world, once more with speed."
    sender = house.send(start_request(text, is_offline=True, speed=speed))
    assert sender.wait() is None
    assert house.models.token2wav.hops == []
    assert house.models.token2wav.speeds == [speed]
    np.testing.assert_array_equal(sender.waveform, np.arange(int(tokens_of(text) * SAMPLES_PER_TOKEN / speed), dtype=np.float32))
    assert len(sender.chunks) > 1
    assert sender.chunks[-1].text_consumed == len(text)
