"""Sessions at a speed of their own: they stream, a later piece may change it, and all that is reported is of the audio that is heard."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.checkpoints.model_card import ModelCard
from bistream.errors import InvalidInputError
from bistream.sessions.request_checks import check_append, check_start
from bistream.token2wav.service import Token2WavHop
from tests.formats import MEL_FRAMES_PER_TOKEN, SAMPLE_RATE, SAMPLES_PER_MEL_FRAME, SAMPLES_PER_TOKEN
from tests.unit.sessions.fakes import append_request, cancel_request, heard_samples, start_request
from tests.unit.sessions.house import CONFIG, House, tokens_of
from tests.unit.sessions.test_token_demand import pacing

TEXT = "Hello world, once more with some speed."


def speeds_of(hops: list[Token2WavHop]) -> list[float]:
    """Of every token."""
    return [hop.speed for hop in hops for _ in hop.token_ids]


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.25, 2.0])
def test_a_whole_text_streams(house: House, speed: float) -> None:
    sender = house.send(start_request(TEXT, speed=speed))
    assert sender.wait() is None
    hops = house.models.token2wav.hops
    assert len(sender.chunks) > 2 and {hop.speed for hop in hops} == {speed} and not house.models.token2wav.speeds
    frames = tokens_of(TEXT) * MEL_FRAMES_PER_TOKEN
    np.testing.assert_array_equal(sender.waveform, np.arange(int(frames / speed) * SAMPLES_PER_MEL_FRAME, dtype=np.float32))
    assert sender.chunks[-1].text_consumed == len(TEXT)
    assert hops[1].playback_buffer_s == pytest.approx(len(sender.chunks[0].waveform) / SAMPLE_RATE)


@pytest.mark.parametrize("speed", [1.0, 1.1, 1.5, 2.0])
def test_the_first_audio_of_fast_speech_is_as_long(house: House, speed: float) -> None:
    usual = heard_samples([1.0] * 18, is_all=False)
    sender = house.send(start_request(TEXT, speed=speed))
    assert sender.wait() is None
    assert usual <= len(sender.chunks[0].waveform) <= usual + SAMPLES_PER_MEL_FRAME


def test_a_later_piece_changes_it_from_there_on(house: House) -> None:
    sender, hops = house.send(start_request("Hello world, ", is_end=False)), house.models.token2wav.hops
    for text, speed, spoken in (("what is ", 1.5, 1.0), ("to be said ", None, 1.5), ("at what ", 0.5, 1.5), ("speed?", None, 0.5)):
        house.wait_until(partial(lambda at: at in speeds_of(hops), spoken), f"nothing is spoken at {spoken}")
        house.send(append_request(text, session_id="s", speed=speed))
    house.send(append_request(is_end=True))
    assert sender.wait() is None
    found = speeds_of(house.models.token2wav.hops)
    assert len(found) == tokens_of("Hello world, what is to be said at what speed?")
    assert [one for one, other in pairwise([*found, 0.0]) if one != other] == [1.0, 1.5, 0.5], "in this order"
    np.testing.assert_array_equal(sender.waveform, np.arange(heard_samples(found, is_all=True), dtype=np.float32))


def test_no_text_is_called_spoken_before_it_is(house: House) -> None:
    """The fake language model speaks five characters with 15 tokens."""
    sender = house.send(start_request("Hello world, once ", is_end=False, speed=2.0))
    house.wait_receiving()
    house.send(append_request("more, with less speed.", is_end=True, speed=0.5))
    assert sender.wait() is None
    speeds = speeds_of(house.models.token2wav.hops)
    heard = 0
    for chunk in sender.chunks[:-1]:
        heard += len(chunk.waveform)
        whole = max(count for count in range(len(speeds) + 1) if heard_samples(speeds[:count], is_all=True) <= heard)
        assert chunk.text_consumed <= whole // 15 * 5 <= chunk.text_consumed + 5
    assert sender.chunks[-1].text_consumed == len("Hello world, once more, with less speed.")


def test_what_was_heard_when_a_cancel_comes_is_counted_in_the_time_of_the_listener() -> None:
    found = []
    for speed, heard_s in ((1.0, 1.0), (2.0, 0.5), (0.5, 2.0)):
        house = House()
        sender = house.send(start_request(TEXT, is_end=False, speed=speed))
        sender.wait_chunks(1)
        house.wait_receiving()
        house.clock.now += heard_s
        answer = house.send(cancel_request())
        sender.wait()
        assert answer.heard is not None
        found.append(answer.heard.text_consumed)
        house.wait_empty()
        house.orchestrator.close()
    assert len(set(found)) == 1 and found[0] > 0


def test_a_wrong_speed_of_a_piece_is_refused_and_the_session_goes_on(house: House) -> None:
    sender = house.send(start_request("Hello ", is_end=False))
    error = house.refused(append_request("world", speed=3.0))
    assert isinstance(error, InvalidInputError) and "between 0.5 and 2" in error.sentence
    house.send(append_request("there.", is_end=True))
    assert sender.wait() is None and set(speeds_of(house.models.token2wav.hops)) == {1.0}


def test_a_model_without_speed_says_so() -> None:
    card = ModelCard(has_speed=False)
    check_start(start_request(speed=1.0), CONFIG, card)
    check_append(append_request("x", speed=1.0), card)
    with pytest.raises(InvalidInputError, match="has no speed"):
        check_start(start_request(speed=1.5), CONFIG, card)
    with pytest.raises(InvalidInputError, match="has no speed"):
        check_append(append_request("x", speed=0.9), card)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.5, 2.0), st.integers(1, 300))
def test_what_was_made_is_counted_as_speech(speed: float, tokens: int) -> None:
    """Up to a frame of the audio, which may be left out at the end."""
    session = pacing(0, speed=speed)
    session.sends(tokens)
    made = session.spoken(int(tokens * MEL_FRAMES_PER_TOKEN / speed) * SAMPLES_PER_MEL_FRAME)
    assert made <= tokens * SAMPLES_PER_TOKEN < made + speed * SAMPLES_PER_MEL_FRAME + 1
