"""How a text with pauses is divided into sessions, and when a pause has come. No clock, no server."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.client.segmented_text import PauseTimer
from bistream.client.segments import Segment, Segments, room_in
from tests.clock import run_at_once

PIECES = st.lists(st.sampled_from(["Hi", " there.", "...", " ", "好", "FLUSH", "PAUSE", "SPOKEN"]), max_size=30)


def divided(steps: list[str]) -> list[Segment]:
    """The segments in the order in which they are over."""
    segments = Segments()
    over = []
    for step in [*steps, "PAUSE"]:
        if step == "SPOKEN":
            while (segment := segments.next()) is not None and segment.is_ended:
                over.append(segment)
                segments.pop()
        elif step in ("FLUSH", "PAUSE"):
            segments.end(is_flush=step == "FLUSH")
        else:
            assert segments.add(step) is segments.open
    while not segments.are_over:
        segment = segments.next()
        assert segment is not None, "after the end each segment has its turn"
        over.append(segment)
        segments.pop()
    return over


@given(steps=PIECES)
def test_every_character_is_in_one_segment_in_order(steps: list[str]) -> None:
    over = divided(steps)
    texts = [step for step in steps if step not in ("FLUSH", "PAUSE", "SPOKEN")]
    assert "".join(segment.text for segment in over) == "".join(texts)
    assert all(segment.is_ended for segment in over)
    begin = 0
    for segment in over:
        assert segment.begins_at == begin == segment.place_of(0)
        begin += len(segment.text)
        assert segment.place_of(len(segment.text)) == segment.place_of(10_000) == begin


@given(steps=PIECES)
def test_every_flush_is_told_once_behind_its_text(steps: list[str]) -> None:
    told = "".join(segment.text + ("|" if segment.is_flushed else "") for segment in divided(steps))
    assert told == "".join("|" if step == "FLUSH" else step for step in steps if step not in ("PAUSE", "SPOKEN"))


def sessions(pieces: list[str], limit: int) -> list[str]:
    """The texts of sessions that take so many characters at most."""
    segments = Segments()
    for left in pieces:
        while left:
            room = room_in("" if segments.open is None else segments.open.text, left, limit)
            assert 0 <= room <= len(left) and (room or segments.open is not None), "no session without text"
            if room:
                segments.add(left[:room])
            left = left[room:]
            if left:
                segments.end()
    return [segment.text for segment in segments]


@given(pieces=st.lists(st.text(st.sampled_from("ab .,!?\n。，你"), min_size=1, max_size=30), max_size=12), limit=st.integers(1, 40))
def test_a_long_text_is_divided_into_sessions_that_servers_take(pieces: list[str], limit: int) -> None:
    texts = sessions(pieces, limit)
    assert "".join(texts) == "".join(pieces) and all(0 < len(text) <= limit for text in texts)
    assert all(len(text) >= 3 * limit // 4 for text in texts[:-1])


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_session_ends_at_the_end_of_a_sentence(size: int) -> None:
    text = "One two three. " * 10
    pieces = [text[begin : begin + size] for begin in range(0, len(text), size)]
    assert sessions(pieces, 50) == ["One two three. " * 3] * 3 + ["One two three. "]


def test_a_segment_is_spoken_from_its_first_word_on() -> None:
    segments = Segments()
    segments.add("... ")
    assert segments.next() is None
    segments.add("Hi")
    assert segments.next() is not None
    segments.end()
    assert (found := segments.next()) is not None and found.text == "... Hi" and not found.is_silence


def test_nothing_to_speak_is_silence_where_it_ends() -> None:
    segments = Segments()
    segments.add("...")
    assert segments.next() is None
    segments.end()
    assert (found := segments.next()) is not None and found.is_silence


def test_a_pause_counts_from_the_last_piece() -> None:
    async def run() -> None:
        loop, rung = asyncio.get_running_loop(), list[float]()
        timer = PauseTimer(2.0, lambda: rung.append(loop.time()))
        for _ in range(100):
            timer.restart()
            await asyncio.sleep(0.1)
        last = loop.time() - 0.1
        await asyncio.sleep(10.0)
        assert rung == [pytest.approx(last + 2.0)]
        timer.restart()
        timer.stop()
        await asyncio.sleep(10.0)
        assert len(rung) == 1

    run_at_once(run())
