"""What a session tells the language model about its listener."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bistream.config import RuntimeConfig
from bistream.families.family import BlockLayout
from bistream.families.spark import SPARK
from bistream.hops.policy import HopPolicy
from bistream.sessions.hop_pacing import HopPacing
from bistream.types import SpeechBreak, SpeechTokens, TokenDemand, VoicePrompt
from tests.formats import AUDIO_FORMAT, BLOCKS, SAMPLE_RATE

PROMPT = VoicePrompt("", np.zeros(50, np.int32), np.zeros((100, 80), np.float32), np.zeros(192, np.float32))


def pacing(tokens: int, offline: bool = False, speed: float = 1.0, blocks: BlockLayout = BLOCKS, is_resting: bool = False) -> HopPacing:
    """Of a session with this many tokens that are in no hop yet."""
    session: Any = SimpleNamespace(
        start=SimpleNamespace(offline=offline, is_end=True, speed=speed),
        tokens=[1] * tokens,
        finish_reason=None,
        last_message=SpeechTokens((), is_resting=is_resting),
        speed=speed,
        break_edges=deque(),
    )
    made = HopPacing(session, RuntimeConfig(), HopPolicy(AUDIO_FORMAT, blocks), lambda: asyncio.sleep(0), lambda: None)
    made.voice_ready(PROMPT)
    return made


@pytest.mark.parametrize(("tokens", "wanted"), [(0, 18), (5, 13), (18, 10), (25, 3), (28, 25), (100, 25)])
def test_before_the_first_audio_the_slack_is_that_of_the_tokens(tokens: int, wanted: int) -> None:
    """And wanted is what the first hop, of 15 tokens, or the second one, of 10, lacks with its lookahead."""
    demand = pacing(tokens).demand(10.0)
    assert demand.slack_s == pytest.approx(tokens / 25)
    assert demand.tokens == wanted


def test_at_the_end_of_a_sentence_wanted_is_what_the_next_one_begins_with() -> None:
    """Where the family flushes what is there, at a rest or at a break, and counts anew."""
    first = pacing(0, blocks=SPARK.blocks)
    resting = pacing(40, blocks=SPARK.blocks, is_resting=True)
    behind_break = pacing(45, blocks=SPARK.blocks)
    behind_break._session.break_edges += [(20, SpeechBreak(20, 8, 100)), (28, None)]
    wanted = first.demand(10.0).tokens
    assert resting.demand(10.0).tokens == wanted and behind_break.demand(10.0).tokens == wanted - 17
    interleaved = pacing(45)
    interleaved._session.break_edges += behind_break._session.break_edges
    assert interleaved.demand(10.0).tokens == pacing(45).demand(10.0).tokens


@pytest.mark.parametrize("speed", [0.5, 1.25, 2.0])
def test_at_another_speed_the_slack_is_what_is_heard(speed: float) -> None:
    session = pacing(50, speed=speed)
    assert session.demand(100.0).slack_s == pytest.approx(2.0 / speed)
    session.playback.sent(SAMPLE_RATE // 2, 100.0)
    assert session.demand(100.25).slack_s == pytest.approx(2.0 / speed - 0.25)


def test_what_was_played_is_no_slack_and_what_is_not_spoken_yet_is() -> None:
    session = pacing(50)
    session.playback.sent(SAMPLE_RATE, 100.0)  # one of the two seconds
    for now, slack_s in ((100.0, 2.0), (100.5, 1.5), (101.0, 1.0), (105.0, 1.0)):
        assert session.demand(now).slack_s == pytest.approx(slack_s)


def test_nobody_listens_to_an_offline_session_yet() -> None:
    demand = pacing(5, offline=True).demand(10.0)
    assert demand == TokenDemand(13, None)
