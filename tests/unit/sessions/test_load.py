"""What sessions need, how needs add up, and which starts are refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import BusyError
from bistream.sessions import load
from bistream.sessions.load import (
    ASSUMED_CAPACITY,
    FIRST_RETRY_S,
    LENGTH_MARGIN,
    MAX_RETRY_S,
    MIN_RETRY_S,
    RATE_WINDOW_S,
    RECOUNT_S,
    Lengths,
    LoadControl,
    Need,
    SessionLoad,
)
from bistream.sessions.request_checks import SessionStart
from bistream.token2wav.load_report import LoadReport
from bistream.types import GenerationOptions, VoicePrompt
from tests.formats import AUDIO_FORMAT

need_of = partial(load.need_of, audio_format=AUDIO_FORMAT)
START = SessionStart(None, b"x" * 120, True, None, "", "anna", GenerationOptions(), 1.0, False)
SPEAKING = SessionLoad(age_s=5.0, buffer_s=2.0, made_s=4.0, received_s=6.0, voice_tokens=125)
REPORT = LoadReport(capacity=100.0, pages=0, reserve_pages=10)


class Desk:
    """A load control with everything that it asks for."""

    def __init__(self, report: LoadReport | None, target: float = 0.9) -> None:
        self.now_s = 1000.0
        self.report = report
        self.live: list[Need] = []
        self.control = LoadControl(target, lambda: self.report, lambda: self.live, lambda: self.now_s)

    def start(self, need: Need) -> bool:
        try:
            self.control.admit(need)
        except BusyError as error:
            assert error.retry_after_s is not None
            return False
        self.live.append(need)
        return True

    def start_many(self, need: Need, offered: int = 400, apart_s: float = 0.0) -> int:
        admitted = 0
        for _ in range(offered):
            self.now_s += apart_s
            admitted += self.start(need)
        return admitted


@pytest.mark.parametrize("apart_s", [0.0, 0.02, 1.0])
def test_sessions_fit_until_the_target(apart_s: float) -> None:
    desk = Desk(REPORT)
    assert desk.start_many(Need(1.0), apart_s=apart_s) == 90
    desk.now_s += 1.0
    assert desk.control.load() == pytest.approx(0.9)


def test_a_session_that_ends_makes_room() -> None:
    desk = Desk(REPORT)
    desk.start_many(Need(1.0))
    desk.live.pop()
    desk.control.ended(None, 5.0)
    desk.now_s += RECOUNT_S
    assert desk.start(Need(1.0)) and not desk.start(Need(1.0))


@pytest.mark.parametrize("capacity", [0.01, 0.5, 1.0])
def test_the_only_session_is_never_refused(capacity: float) -> None:
    desk = Desk(LoadReport(capacity, pages=1, reserve_pages=10))
    assert desk.start(Need(2.5, pages=30.0)) and not desk.start(Need(2.5, pages=30.0))


def test_zero_refuses_nobody() -> None:
    assert Desk(replace(REPORT, pages=5), target=0.0).start_many(Need(1.0, pages=30.0)) == 400


@pytest.mark.parametrize("report", [None, LoadReport()])
def test_before_anything_is_known_a_capacity_is_assumed(report: LoadReport | None) -> None:
    desk = Desk(report)
    assert desk.start_many(Need(2.5, pages=30.0)) == int(0.9 * ASSUMED_CAPACITY / 2.5)
    assert desk.control.load() == 0.0


def test_listeners_who_wait_for_this_server_keep_others_out() -> None:
    desk = Desk(REPORT)
    desk.live = [Need(1.0)] * 39 + [Need(1.0, is_late=True)]
    assert desk.start(Need(1.0))
    desk.live.append(Need(1.0, is_late=True))
    desk.live.append(Need(1.0, is_late=True))
    desk.now_s += 1.0
    assert not desk.start(Need(1.0)) and desk.start(Need(0.0))


def test_pages_of_all_sessions_and_of_each_voice_once_must_exist() -> None:
    desk = Desk(replace(REPORT, pages=100))
    desk.live = [Need(1.0)]
    anna = Need(1.0, pages=20.0, voice="anna", voice_pages=10)
    assert desk.start_many(anna, offered=10) == 4  # 4 x 20 + 10
    desk.live.clear()
    desk.now_s += 1.0
    assert sum(desk.start(replace(anna, voice=index)) for index in range(10)) == 3


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_a_hint_is_within_its_bounds_and_grows_with_those_who_wait(ends: list[int]) -> None:
    desk = Desk(REPORT)
    assert desk.control.retry_after_s() > 0
    for _ in ends:
        desk.now_s += 0.1
        desk.control.ended(None, 5.0)
    hints = [desk.control.retry_after_s() for _ in range(50)]
    assert hints == sorted(hints) and MIN_RETRY_S <= hints[0] and hints[-1] <= MAX_RETRY_S
    desk.now_s += 1.1 * RATE_WINDOW_S
    assert desk.control.retry_after_s() == FIRST_RETRY_S, "what was so long ago is forgotten"


def test_what_a_session_promises() -> None:
    def rate(**changes: object) -> float:
        return need_of(START, replace(SPEAKING, **changes), REPORT, Lengths()).rate  # type: ignore[arg-type]

    assert rate() == 1.0
    assert rate(buffer_s=60.0) == 1.0
    assert rate(speed=1.5) == 1.5 and rate(speed=2.0, made_s=0.0, age_s=0.5) == 5.0, "of speech, which token2wav makes"
    assert rate(tokens_ended=True) == 1.0
    assert rate(tokens_ended=True, made_s=6.0) == 0.0
    assert rate(has_ended=True) == 0.0
    assert rate(made_s=0.0, age_s=0.5) == 2.5
    assert rate(made_s=0.0, age_s=1.5) == 1.0, "text that does not come is no first hop"


def test_an_offline_session_promises_nothing() -> None:
    need = need_of(replace(START, offline=True), SPEAKING, REPORT, Lengths())
    assert (need.rate, need.pages) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "is_late"),
    [
        ({"buffer_s": 0.0, "hop_waits": True}, True),
        ({"buffer_s": 0.1, "hop_waits": True}, False),
        ({"buffer_s": 0.0}, False),  # it waits for text
        ({"buffer_s": 0.0, "text_ended": True}, True),  # it waits for the language model
        ({"buffer_s": 0.0, "made_s": 0.0, "hop_waits": True}, False),
    ],
)
def test_who_is_late(changes: dict[str, object], is_late: bool) -> None:
    assert need_of(START, replace(SPEAKING, **changes), REPORT, Lengths()).is_late == is_late  # type: ignore[arg-type]


def test_pages_of_a_session() -> None:
    def pages(start: SessionStart = START, report: LoadReport = REPORT, lengths: Lengths | None = None, **changes: object) -> float:
        return need_of(start, replace(SPEAKING, **changes), report, lengths or Lengths()).pages  # type: ignore[arg-type]

    long, in_pieces = replace(START, text=b"x" * 1200), replace(START, is_end=False)
    assert pages() == pytest.approx(12.5)
    assert pages(long) == pytest.approx(125.0)
    assert pages(long, tokens_ended=True) == 10.0, "the reservation"
    assert pages(long, tokens_ended=True, received_s=40.0) == 40.0
    assert pages(long, lengths=Lengths(longest_s=15.0)) == 15.0
    assert pages(long, replace(REPORT, most_pages=8)) == 8.0
    assert pages(in_pieces) == 30.0
    assert pages(in_pieces, received_s=40.0) == 50.0


def test_lengths_are_learned() -> None:
    lengths = Lengths()
    for _ in range(100):
        lengths.ended(100, 20.0)
        lengths.ended(None, 3.0)
    assert lengths.expected_s(50) == pytest.approx(12.5, rel=0.02)
    assert lengths.expected_s(None) == 3.0


def speech_s(text_bytes: int) -> float:
    """With pauses before and after it."""
    return 0.5 + text_bytes / 15


@pytest.mark.parametrize("short_share", [0.0, 0.5, 0.9])
def test_short_texts_say_little_about_long_ones(short_share: float) -> None:
    """Half of their speech is pause: by the mean of all paces a long text would last two to three times as long as it does."""
    lengths = Lengths()
    for number in range(400):
        size = 4 if number % 10 < 10 * short_share else 300
        lengths.ended(size, speech_s(size))
    assert speech_s(300) < lengths.expected_s(300) < 1.2 * LENGTH_MARGIN * speech_s(300)


def test_with_bounded_left_context_every_session_reserves_the_same() -> None:
    """What it needs does not depend on how long its speech is, and without it no state of the newest speech could be kept."""
    bounded = replace(REPORT, most_pages=REPORT.reserve_pages)
    short = replace(SPEAKING, reserved_s=4.0)
    assert need_of(START, short, bounded, Lengths()).reserved == 10
    assert need_of(START, short, replace(REPORT, most_pages=300), Lengths()).reserved == 4


def test_different_recordings_are_different_voices() -> None:
    """Of the same length and transcript, or known by their hashes alone."""
    sound = np.sin(np.arange(16_000 * 7, dtype=np.float32))
    heard = replace(START, speaker_id=None, reference_wav=sound, reference_text="Seven.")
    tokens = np.zeros(375, np.int32)
    voice = VoicePrompt("Seven.", tokens, np.zeros((750, 80), np.float32), np.zeros(192, np.float32))
    known = replace(START, speaker_id=None, reference_hash="0" * 64, voice=voice)
    others = [replace(heard, reference_wav=-sound), replace(known, reference_hash="1" * 64)]
    voices = [need_of(start, SPEAKING, REPORT, Lengths()).voice for start in (heard, known, *others)]
    assert len(set(voices)) == 4
    assert need_of(heard, SPEAKING, REPORT, Lengths()).voice == need_of(replace(heard), SPEAKING, REPORT, Lengths()).voice
    assert need_of(known, replace(SPEAKING, voice_tokens=None), REPORT, Lengths()).voice_pages == 15
