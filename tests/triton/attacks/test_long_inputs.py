"""First requests as long as the limits allow, while others talk: prompts of many steps of the language model."""

from __future__ import annotations

from typing import Any

import pytest

from bistream.config import RuntimeConfig
from tests.sounds import speech_like
from tests.triton.attacks.gauges import wait_free
from tests.triton.callers import Caller
from tests.triton.conftest import LIMITS
from tests.triton.processes import described, named, replaced
from tests.triton.reliability import Attack
from tests.triton.served import END_S, Served

MAX_CHARS = int(LIMITS["cosyvoice2_bistream.max_text_chars"])
MAX_RECORDING_S = RuntimeConfig().max_reference_s
RATE = 16000
LONGEST = ("Streets and trees, one after the other, all the way. " * MAX_CHARS)[:MAX_CHARS]
SHORT = "Yes."


def long_voice() -> dict[str, Any]:
    """A recording of the longest duration, and a transcript."""
    count = int(MAX_RECORDING_S * RATE)
    return {"reference_wav": speech_like(count).reshape(1, -1), "reference_wav_len": count, "reference_text": LONGEST}


@pytest.mark.attack(
    f"first requests of {MAX_CHARS} characters, whole and with more to come, and recordings of {MAX_RECORDING_S:g} s "
    "with their transcripts, while others talk; and one character more",
    must="all of them speak, one character more is INVALID_INPUT, nobody's session ends, nothing is held at the end",
)
def test_long_first_requests_end_nobodys_session(busy: Served, attack: Attack) -> None:
    before, url = named(busy.keeper.pid), busy.grpc_url
    talking, recording = busy.callers(), long_voice()
    short = Caller(url, recording, SHORT, is_end=True)
    long = [Caller(url, busy.new_voice(), LONGEST, is_end=True), Caller(url, recording, LONGEST, is_end=False)]
    refused = Caller(url, busy.new_voice(), LONGEST + ".", is_end=True)
    for caller in long:
        caller.wait_audio()
        assert not caller.codes
        caller.close()
    for caller in talking:
        caller.say(SHORT)
    ended = [*talking, short, refused]
    for caller in ended:
        assert caller.wait_end(END_S)
    attack.got(caller.outcome for caller in ended)
    assert [caller.outcome for caller in ended] == ["audio"] * (len(talking) + 1) + ["INVALID_INPUT"]
    for caller in ended:
        caller.close()
    wait_free(busy)
    attack.processes = described(before, named(busy.keeper.pid))
    assert replaced(before, named(busy.keeper.pid)) == []
