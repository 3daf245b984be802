"""Flushes and graceful ends in any order, together or apart: all flushed text is spoken, and the socket closes if asked to."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.interfaces.machine import Player
from tests.unit.interfaces.test_cartesia import SETTINGS as CARTESIA_SETTINGS
from tests.unit.interfaces.test_hostile_messages import MAKERS

CONTEXTS = ("a", "b")
SAY, FLUSH, END, CLOSE = "say", "flush", "end", "close"


@dataclass(frozen=True)
class Vendor:
    """ops: what its clients do with a context. speaks: of these, those after which all text so far must be spoken. message: of an op."""

    contexts: Sequence[str]
    ops: Sequence[str]
    speaks: Sequence[str]
    message: Callable[[str, str, str], dict[str, Any]]


def _multi(op: str, context: str, text: str) -> dict[str, Any]:
    messages: dict[str, dict[str, Any]] = {
        SAY: {"context_id": context, "text": text},
        FLUSH: {"context_id": context, "flush": True},
        END: {"context_id": context, "close_context": True},
        CLOSE: {"close_socket": True},
    }
    return messages[op]


def _single(op: str, context: str, text: str) -> dict[str, Any]:
    messages: dict[str, dict[str, Any]] = {SAY: {"text": text}, FLUSH: {"text": "", "flush": True}, END: {"text": ""}}
    return messages[op]


def _dashscope(op: str, context: str, text: str) -> dict[str, Any]:
    action = "finish-task" if op == END else "continue-task"
    given = {SAY: {"text": text}, FLUSH: {"flush": True}}.get(op, {})
    return {"header": {"action": action, "task_id": "t", "streaming": "duplex"}, "payload": {"input": given}}


VENDORS = {
    "multi": Vendor(CONTEXTS, (SAY, FLUSH, END, CLOSE), (FLUSH,), _multi),
    "single": Vendor(CONTEXTS[:1], (SAY, FLUSH, END), (FLUSH, END), _single),
    "cartesia": Vendor(
        CONTEXTS,
        (SAY, FLUSH, END),
        (FLUSH, END),
        lambda op, context, text: {
            **CARTESIA_SETTINGS,
            "context_id": context,
            "transcript": text if op == SAY else "",
            "continue": op != END,
            "flush": op == FLUSH,
        },
    ),  # fmt: skip
    "dashscope": Vendor(CONTEXTS[:1], (SAY, FLUSH, END), (FLUSH, END), _dashscope),
    **{
        name: Vendor(
            CONTEXTS[:1],
            (SAY, FLUSH, CLOSE),
            (FLUSH,),
            lambda op, context, text: {"type": {SAY: "Speak", FLUSH: "Flush", CLOSE: "Close"}[op], **({"text": text} if op == SAY else {})},
        )
        for name in ("deepgram", "deepgram v1")
    },
}


def happen(one: Player) -> bool:
    """The next event of the core, for the oldest utterance that has one."""
    for speech in list(one.texts):
        if one.flushes[speech]:
            one.flushed(speech)
            return True
        if speech in one.ended:
            one.finished(speech)
            return True
    return False


@pytest.mark.parametrize("name", sorted(VENDORS))
@given(data=st.data())
def test_graceful_ends_never_lose_what_was_flushed(name: str, data: st.DataObject) -> None:
    vendor = VENDORS[name]
    ops = data.draw(st.lists(st.tuples(st.sampled_from(vendor.ops), st.sampled_from(vendor.contexts), st.integers(0, 2)), max_size=12))
    one = Player(MAKERS[name]())
    if name == "dashscope":
        parameters = {"voice": "anna", "format": "pcm"}
        one.receive(json.dumps({"header": {"action": "run-task", "task_id": "t"}, "payload": {"parameters": parameters, "input": {}}}))
    said: dict[str, list[str]] = {context: [] for context in vendor.contexts}
    wanted: list[str] = []
    over: set[str] = set()  # contexts that take no more text, or all of them
    for number, (op, context, events) in enumerate(ops):
        if op == CLOSE or context not in over:
            one.receive(json.dumps(vendor.message(op, context, f"<{number}> ")))
            if op == SAY:
                said[context].append(f"<{number}>")
            if op in vendor.speaks:
                wanted += said[context]
            over |= {context} if op == END else set(vendor.contexts) if op == CLOSE else set()
        for _ in range(events):
            happen(one)
    while happen(one):
        pass
    assert all(any(text in spoken for spoken in one.spoken) for text in wanted), (one.spoken, wanted)
    must_close = CLOSE in [op for op, _, _ in ops] or (name == "single" and END in [op for op, _, _ in ops])
    assert not must_close or (one.closed is not None and one.closed.code == 1000)
