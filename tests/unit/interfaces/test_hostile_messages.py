"""Random and hostile messages, between random events: never an exception, never an action on what does not live."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.errors import EngineError
from interfaces.audio.formats import OutputFormat
from interfaces.protocols.actions import Made, SocketProtocol
from interfaces.protocols.cartesia import Cartesia
from interfaces.protocols.dashscope import DashScope
from interfaces.protocols.deepgram import Deepgram, DeepgramOptions
from interfaces.protocols.deepgram_v1 import DeepgramV1
from interfaces.protocols.elevenlabs import ElevenLabs, ElevenLabsOptions
from tests.unit.interfaces.machine import Player

MAKERS: dict[str, Callable[[], SocketProtocol]] = {
    "deepgram": lambda: Deepgram(DeepgramOptions("anna", OutputFormat(), max_text_chars=50)),
    "deepgram v1": lambda: DeepgramV1(DeepgramOptions("anna", OutputFormat(), max_text_chars=50)),
    "cartesia": lambda: Cartesia(max_contexts=3),
    "dashscope": DashScope,
    "multi": lambda: ElevenLabs(ElevenLabsOptions("anna", OutputFormat(), True, max_contexts=3)),
    "single": lambda: ElevenLabs(ElevenLabsOptions("anna", OutputFormat(), False)),
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=2), max_leaves=3
)
TEXT = st.sampled_from(["", " ", "a", "你好", "...", "\ud83d", "x" * 60]) | ANYTHING
NAMES = st.sampled_from(["a", "b", "", "x" * 200]) | ANYTHING
FLAG = st.booleans() | ANYTHING
ELEVENLABS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXT,
        "context_id": NAMES,
        "flush": FLAG,
        "close_context": FLAG,
        "close_socket": st.just(True),
        "voice_settings": ANYTHING,
        "xi_api_key": ANYTHING,
        "authorization": ANYTHING,
    },
)
DEEPGRAM = st.fixed_dictionaries(
    {"type": st.sampled_from(["Speak", "Speak", "Flush", "Interrupt", "Configure", "Close"]) | ANYTHING},
    optional={
        "text": TEXT,
        "speed": ANYTHING,
        "playback_offset": st.fixed_dictionaries({"type": st.just("time_ms"), "value": st.integers(-10, 3000)}) | ANYTHING,
    },
)
DASHSCOPE = st.fixed_dictionaries(
    {
        "header": st.fixed_dictionaries(
            {
                "action": st.sampled_from(["run-task", "continue-task", "finish-task"]) | ANYTHING,
                "task_id": st.sampled_from(["a", "b"]) | ANYTHING,
            }
        )
        | ANYTHING,
        "payload": st.fixed_dictionaries(
            {},
            optional={
                "input": st.fixed_dictionaries(
                    {}, optional={"text": TEXT | st.just("<speak>"), "flush": FLAG, "directive": st.just("cancel") | ANYTHING}
                )
                | ANYTHING,
                "parameters": st.fixed_dictionaries(
                    {},
                    optional={
                        "format": TEXT,
                        "sample_rate": ANYTHING,
                        "rate": ANYTHING,
                        "seed": ANYTHING,
                        "volume": ANYTHING,
                        "instruction": TEXT,
                        "word_timestamp_enabled": FLAG,
                        "enable_ssml": FLAG,
                    },
                )
                | ANYTHING,
            },
        ),
    }
)
CARTESIA = st.fixed_dictionaries(
    {"context_id": NAMES, "transcript": TEXT},
    optional={
        "continue": FLAG,
        "flush": FLAG,
        "cancel": FLAG,
        "add_timestamps": FLAG,
        "voice": st.sampled_from(["anna", {"mode": "id", "id": "anna"}]) | ANYTHING,
        "output_format": st.fixed_dictionaries({}, optional={"container": TEXT, "encoding": TEXT, "sample_rate": ANYTHING}) | ANYTHING,
        "generation_config": st.fixed_dictionaries({}, optional={"speed": ANYTHING, "volume": ANYTHING}) | ANYTHING,
    },
)
DEEPGRAM_V1 = st.fixed_dictionaries(
    {"type": st.sampled_from(["Speak", "Speak", "Flush", "Clear", "Close"]) | ANYTHING}, optional={"text": TEXT}
)
MESSAGES = {
    "deepgram": DEEPGRAM,
    "deepgram v1": DEEPGRAM_V1,
    "cartesia": CARTESIA,
    "dashscope": DASHSCOPE,
    "multi": ELEVENLABS,
    "single": ELEVENLABS,
}
HOSTILE = (
    st.binary(max_size=8)
    | st.text(max_size=20)
    | st.sampled_from(["[" * 100_000, '{"a":' * 50 + "1" + "}" * 50, "null", "NaN", '{"text":1e999}'])
)


def happens(one: Player, event: Any) -> None:
    """An event of a random utterance that lives, as the core may give it."""
    kind, which, amount = event
    if one.closed is not None or not one.texts:
        return
    speech = sorted(one.texts)[which % len(one.texts)]
    if kind == "audio":
        one.audio(speech, Made(b"x" * (amount % 2), float(amount), min(amount, len(one.texts[speech])), amount if amount % 3 else None))
    elif kind == "flushed" and one.flushes[speech]:
        one.flushed(speech)
    elif kind == "finished" and speech in one.ended and not one.flushes[speech]:
        one.finished(speech)
    elif kind == "failed":
        one.failed(speech, EngineError("Computing failed; try again."))


@pytest.mark.parametrize("name", sorted(MAKERS))
@given(data=st.data())
def test_no_message_breaks_a_protocol(name: str, data: st.DataObject) -> None:
    one = Player(MAKERS[name]())
    event = st.tuples(st.sampled_from(["audio", "audio", "flushed", "finished", "failed"]), st.integers(0, 9), st.integers(0, 900))
    for step in data.draw(st.lists(MESSAGES[name].map(json.dumps) | MESSAGES[name].map(json.dumps) | event | HOSTILE, max_size=14)):
        if isinstance(step, tuple):
            happens(one, step)
        else:
            one.receive(step)
    for message in one.sent:
        assert isinstance(message, bytes) or "Traceback" not in json.dumps(message)


def test_a_task_with_refused_text_was_never_opened() -> None:
    one = Player(DashScope())
    one.receive('{"header": {"action": "run-task", "task_id": "a"}, "payload": {"input": {"text": []}}}')
    assert one.closed is not None and not one.opened and not one.cancelled
    assert [message["header"]["event"] for message in one.sent] == ["task-failed"]


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_nonsense_is_answered_in_the_protocols_own_form_and_closes(name: str) -> None:
    for nonsense in ("{", "[]", b"\x00", "[" * 100_000, '{"text": 5, "type": "Speak", "header": {"task_id": 7}}'):
        one = Player(MAKERS[name]())
        one.receive(nonsense)
        assert one.closed is not None and one.closed.code == 1008, nonsense[:10]
        assert isinstance(one.sent[-1], dict)
