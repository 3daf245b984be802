"""Whoever is admitted finds flow state when the first audio is due, also where no load is too high (``admission_load`` 0)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import BusyError
from bistream.sessions.load import (
    FIRST_LENGTH_S,
    LEAST_RESERVED_S,
    NOTHING,
    Lengths,
    LoadControl,
    Need,
    SessionLoad,
    need_of,
    reserved_speech_s,
    text_bytes,
)
from bistream.sessions.request_checks import SessionStart
from bistream.token2mel.page_pool import Account, PagePool
from bistream.token2mel.state_budget import reserved_pages
from bistream.token2wav.load_report import LoadReport
from bistream.types import GenerationOptions, VoicePrompt
from tests.formats import AUDIO_FORMAT
from tests.unit.sessions.fakes import start_request
from tests.unit.sessions.house import House

H200_PAGES = 2426  # of an H200 that keeps a KV cache for 800 sessions
RESERVE = 10
VOICE_TOKENS = 125
VOICE_CHUNKS = (VOICE_TOKENS - 3) // 25  # those whose state sessions share: the flow's lookahead is not in it
SHORT_S = 5.6


def text(characters: int, is_whole: bool = True, voice: str = "anna") -> SessionStart:
    return SessionStart(None, b"x" * characters, is_whole, None, "", voice, GenerationOptions(), 1.0, False)


def in_voice_of(start: SessionStart, recording: int | None, is_known: bool) -> SessionStart:
    """recording: its number instead of a registered voice. is_known: the client sends its hash alone."""
    if recording is None:
        return start
    sound = np.full(VOICE_TOKENS * 640, recording, np.float32)
    if not is_known:
        return replace(start, speaker_id=None, reference_wav=sound, reference_text="Read this.")
    prompt = VoicePrompt("", np.zeros(VOICE_TOKENS, np.int32), np.zeros((0, 80), np.float32), np.zeros(192, np.float32))
    return replace(start, speaker_id=None, reference_hash=f"{recording:064x}", voice=prompt)


def voice_key(start: SessionStart) -> bytes:
    """Equal only for the same voice, as token2wav's fingerprint of it."""
    if start.reference_wav is not None:
        return b"recording" + start.reference_wav.tobytes()
    return f"{start.speaker_id} {start.reference_hash}".encode()


@dataclass(eq=False)
class Session:
    start: SessionStart
    reserved_s: float | None
    counted: Need = NOTHING
    account: Account | None = None  # from its first hop on


@dataclass
class Server:
    """Admission, and the pool of pages that it decides about."""

    pages: int = H200_PAGES
    target: float = 0.0
    now_s: float = 1000.0
    live: list[Session] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = PagePool(self.pages)
        report = LoadReport(capacity=1e6, pages=self.pages, reserve_pages=RESERVE)
        self.load = LoadControl(self.target, lambda: report, lambda: [self.need(one) for one in self.live], lambda: self.now_s)

    def need(self, session: Session) -> Need:
        standing = SessionLoad(age_s=1.0, reserved_s=session.reserved_s, voice_tokens=VOICE_TOKENS)
        session.counted = need_of(session.start, standing, self.load.report, self.load.lengths, AUDIO_FORMAT)
        return session.counted

    def admit(self, start: SessionStart) -> bool:
        session = Session(start, reserved_speech_s(start, self.load.lengths))
        try:
            self.load.admit(self.need(session))
        except BusyError as error:
            assert error.retry_after_s is not None
            return False
        self.live.append(session)
        return True

    def open_all(self) -> None:
        """First hops. Raises ``BusyError`` where the pages are missing that others hold beyond their reservations, too."""
        for session in self.live:
            if session.account is None:
                self.open(session)

    def open(self, session: Session) -> None:
        key, reserve = voice_key(session.start), reserved_pages(session.reserved_s, RESERVE, 1.0)
        lent = [one.account for one in self.live if one.account is not None and one.account.lent]
        while lent and self.pool.shortage(reserve, key, VOICE_CHUNKS) > 0:
            account = lent[-1]
            self.pool.give_back(account, account.pages[:1])
            lent = [account for account in lent if account.lent]
        session.account = self.pool.open(reserve, key, VOICE_CHUNKS)
        assert session.account.prefix is not None
        session.account.prefix.ready = True

    def end(self, index: int, speech_s: float = SHORT_S) -> None:
        session = self.live.pop(index)
        if session.account is not None:
            self.pool.close(session.account)
        self.load.ended(text_bytes(session.start), speech_s, session.counted)


texts = st.builds(text, st.integers(1, 200), st.booleans(), st.sampled_from(["anna", "bea", "carl"]))
starts = st.builds(in_voice_of, texts, st.none() | st.integers(0, 3), st.booleans())
events = st.lists(
    st.one_of(
        st.tuples(st.just("start"), starts),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("speak"), st.integers(0, 30)),
        st.tuples(st.just("wait"), st.floats(0.0, 0.3)),
    ),
    max_size=80,
)


@given(events, st.integers(20, 120), st.sampled_from([0.0, 0.9]))
def test_whoever_is_admitted_finds_room(happens: list[tuple[str, object]], pages: int, target: float) -> None:
    server = Server(pages, target)
    for what, value in happens:
        if isinstance(value, SessionStart):
            server.admit(value)
            server.open_all()
        elif isinstance(value, float):
            server.now_s += value
        elif server.live and isinstance(value, int):
            index = value % len(server.live)
            if what == "end":
                server.end(index)
            elif (account := server.live[index].account) is not None:
                server.pool.take(account, value)
        server.pool.check_integrity()


def test_those_without_room_are_told_at_their_start_and_others_as_soon_as_there_is_room() -> None:
    """Text in pieces: nobody knows how long the speech will be, so it has the full reservation at first."""
    server = Server()
    assert sum(server.admit(text(10, is_whole=False)) for _ in range(256)) == (H200_PAGES - VOICE_TOKENS // 25) // RESERVE == 242
    server.open_all()
    for _ in range(20):  # at the same moment: nothing has been counted anew
        server.end(0, speech_s=12.0)
        assert server.admit(text(10, is_whole=False)) and not server.admit(text(10, is_whole=False))
        server.open_all()


def test_one_short_session_does_not_shrink_what_the_next_ones_reserve() -> None:
    lengths = Lengths()
    lengths.ended(None, 1.0)
    assert reserved_speech_s(text(10, is_whole=False), lengths) > RESERVE


def test_what_is_reserved() -> None:
    lengths = Lengths()
    assert reserved_speech_s(text(10), lengths) == LEAST_RESERVED_S
    assert reserved_speech_s(text(1200), lengths) == lengths.expected_s(1200) > 100
    assert reserved_speech_s(text(1200, is_whole=False), lengths) == FIRST_LENGTH_S
    assert reserved_speech_s(text(1200, is_whole=False), Lengths(7.0)) == 7.0
    assert [reserved_pages(speech_s, RESERVE, 1.0) for speech_s in (None, 0.0, 4.0, 4.1, 125.0)] == [10, 1, 4, 5, 10]


@given(st.floats(0.0, 300.0), st.booleans(), st.booleans(), st.sampled_from([4.0, 7.0, 30.0]))
def test_no_session_counts_for_more_than_the_server_promises(
    received_s: float, tokens_ended: bool, is_spoken: bool, longest_s: float
) -> None:
    """Not even when all its tokens have come, or when it is a recording: longer speech forgets its beginning."""
    start = replace(text(1200, is_whole=False), source_wav=np.zeros(round(received_s * 16_000), np.float32) if is_spoken else None)
    lengths = Lengths(longest_s)
    reserved_s = reserved_speech_s(start, lengths)
    standing = SessionLoad(tokens_ended=tokens_ended, received_s=received_s, reserved_s=reserved_s)
    need = need_of(start, standing, LoadReport(pages=100, reserve_pages=RESERVE), lengths, AUDIO_FORMAT)
    assert reserved_s <= longest_s and need.reserved <= need.pages <= longest_s


def test_an_utterance_at_another_speed_says_how_long_it_is_at_the_usual_one(house: House) -> None:
    expected = set()
    for speed in (0.5, 1.0, 2.0):
        house.orchestrator._load.lengths = Lengths()
        assert house.send(start_request("Hello world. " * 7, session_id=None, speed=speed)).wait() is None
        house.wait_empty()
        expected.add(round(house.orchestrator._load.lengths.expected_s(100), 3))
    assert len(expected) == 1 and expected != {round(Lengths().expected_s(100), 3)}
