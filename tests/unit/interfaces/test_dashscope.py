"""DashScope's duplex tasks, with what its SDK sends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bistream.errors import BusyError
from interfaces.core.values import check_values
from interfaces.protocols.actions import Made
from interfaces.protocols.dashscope import DashScope
from tests.unit.interfaces.machine import Player


def send(one: Player, action: str, given: dict[str, Any] | None = None, task: str = "t1", **parameters: Any) -> list[Any]:
    header = {"action": action, "task_id": task, "streaming": "duplex"}
    return one.receive(json.dumps({"header": header, "payload": {"input": given or {}, "parameters": parameters}}))


def events(messages: list[Any]) -> list[str]:
    return ["audio" if isinstance(message, bytes) else message["header"]["event"] for message in messages]


def started(**parameters: Any) -> Player:
    one = Player(DashScope())
    given = {"voice": "anna", "format": "pcm", "sample_rate": 24000, "rate": 1.0, "volume": 50, "pitch": 1.0, "seed": 0, **parameters}
    assert events(send(one, "run-task", **given)) == ["task-started"]
    return one


def test_a_task_from_start_to_end() -> None:
    one = started()
    for piece in ("你好", "，今天"):
        assert send(one, "continue-task", {"text": piece}) == []
    assert one.texts == {"1": "你好，今天"} and one.opened[0].values == {"seed": 0}
    assert events(one.audio("1", Made(b"xx", 400.0, 2))) == ["result-generated", "result-generated", "audio"]
    assert events(one.audio("1", Made(b"xx", 400.0, 5))) == ["result-generated", "audio"]
    send(one, "continue-task", {"flush": True})
    assert one.flushes == {"1": 1}
    send(one, "finish-task")
    assert events(one.finished("1")) == ["result-generated", "task-finished"]
    assert events(send(one, "run-task", task="t2")) == ["task-started"]  # the same socket


@pytest.mark.parametrize(
    ("asked", "text", "is_ssml"),
    [
        (True, '<speak>One <break time="1s"/> two</speak>', True),
        (True, '\n<speak rate="1.2">one</speak>', True),
        (True, '\ufeff<?xml version="1.0"?><speak>one</speak>', True),  # and then refused, in place of being spoken
        (True, "AT&T: 1 < 2", False),  # the vendor's packages set it for every text that is sent whole
        (True, "<speaker> one", False),
        (False, "<speak>one</speak>", False),
        (None, "<speak>one</speak>", False),
    ],
)
def test_a_text_in_speak_is_ssml_where_the_client_allows_it(asked: bool | None, text: str, is_ssml: bool) -> None:
    one = started(enable_ssml=asked)
    if asked:
        send(one, "continue-task", {"text": " \ufeff"})
        send(one, "continue-task", {"flush": True})
    send(one, "continue-task", {"text": text})
    send(one, "continue-task", {"text": " <speak>more"})
    (opened,) = one.opened
    assert opened.values == {"seed": 0, **({"text_type": "ssml"} if is_ssml else {})}
    check_values(opened.values)
    assert one.texts == {"1": f"{text} <speak>more"}


def test_a_task_that_waits_for_its_first_text_may_end_fail_or_be_cancelled() -> None:
    cancelled, failed, ended = (started(enable_ssml=True) for _ in range(3))
    assert events(send(cancelled, "finish-task", {"directive": "cancel"})) == ["task-finished"]
    assert events(send(failed, "jump")) == ["task-failed"]
    assert cancelled.opened == failed.opened == [] and cancelled.cancelled == failed.cancelled == []
    send(ended, "finish-task")
    assert ended.ended == {"1"} and events(ended.finished("1")) == ["task-finished"]


def test_a_client_without_a_format_gets_mp3() -> None:
    chosen = started(format="Default", sample_rate=0).opened[0].format
    assert (chosen.codec, chosen.sample_rate) == ("mp3", 22050)


def test_an_instruction_says_how_to_speak() -> None:
    assert started(instruction="用四川话说这句话").opened[0].values == {"seed": 0, "instruct_text": "用四川话说这句话"}
    assert started(instruction="").opened[0].values == started(instruction=None).opened[0].values == {"seed": 0}
    assert events(send(Player(DashScope()), "run-task", instruction=["calm"])) == ["task-failed"]


@pytest.mark.parametrize(("volume", "gain"), [(None, 1.0), (50, 1.0), (0, 0.0), (100, 2.0), (25, 0.5)])
def test_volume_scales_the_samples(volume: int | None, gain: float) -> None:
    assert started(volume=volume).opened[0].gain == gain


@pytest.mark.parametrize("volume", [-1, 101, "loud", float("nan")])
def test_a_volume_out_of_range_is_refused(volume: Any) -> None:
    one = Player(DashScope())
    assert events(send(one, "run-task", volume=volume)) == ["task-failed"] and one.opened == []


def sentences(messages: list[Any]) -> list[dict[str, Any]]:
    outputs = [message["payload"].get("output") for message in messages if not isinstance(message, bytes)]
    return [output for output in outputs if output and output["type"] != "sentence-synthesis"]


def test_the_text_up_to_a_flush_is_a_sentence() -> None:
    one = started()
    send(one, "continue-task", {"text": "First. "})
    send(one, "continue-task", {"flush": True})
    send(one, "continue-task", {"text": "Second."})  # while the first one is spoken
    one.audio("1", Made(b"xx", 400.0, 7))
    one.flushed("1")
    one.audio("1", Made(b"xx", 400.0, 14))
    send(one, "finish-task")
    one.finished("1")
    told = [(output["type"], output["sentence"]["index"], output["original_text"]) for output in sentences(one.sent)]
    assert told == [
        ("sentence-begin", 0, "First. "),
        ("sentence-end", 0, "First. "),
        ("sentence-begin", 1, "Second."),
        ("sentence-end", 1, "Second."),
    ]
    assert one.sent[-1]["payload"] == {"usage": {"characters": 14}}


def test_words_have_times_in_the_audio_of_the_task_and_places_in_their_sentence() -> None:
    one = started(word_timestamp_enabled=True)
    send(one, "continue-task", {"text": "好。"})
    send(one, "continue-task", {"flush": True})
    send(one, "continue-task", {"text": "Yes "})
    one.audio("1", Made(b"xx", 400.0, 0, 2))
    one.flushed("1")
    one.audio("1", Made(b"xx", 300.0, 2, 6))
    send(one, "continue-task", {"text": "no."})
    one.audio("1", Made(b"xx", 300.0, 6, 9))
    send(one, "finish-task")
    one.finished("1")
    ends = [output["sentence"]["words"] for output in sentences(one.sent) if output["type"] == "sentence-end"]
    told = [[(word["text"], word["begin_index"], word["end_index"], word["begin_time"], word["end_time"]) for word in end] for end in ends]
    assert told == [[("好", 0, 1, 0, 200), ("。", 1, 2, 200, 400)], [("Yes", 0, 3, 400, 625), ("no.", 4, 7, 700, 900)]]


def test_cancel_discards_the_rest_and_is_answered_with_task_finished() -> None:
    one = started()
    send(one, "continue-task", {"text": "long"})
    assert events(send(one, "finish-task", {"directive": "cancel"})) == ["task-finished"]
    assert one.cancelled == ["1"] and send(one, "finish-task", {"directive": "cancel"}) == []


def test_a_failure_is_task_failed_and_the_socket_stays() -> None:
    one = started()
    (event,) = one.failed("1", BusyError("Full; try again in 2.5 s.", retry_after_s=2.5))
    assert event["header"]["event"] == "task-failed" and event["header"]["error_code"] == "Throttling"
    assert "Full" in event["header"]["error_message"] and one.closed is None


def test_what_was_under_way_when_a_task_failed_is_no_second_failure() -> None:
    """The vendor's package tells its caller the last one."""
    one = started()
    one.failed("1", BusyError("Full; try again in 2.5 s."))
    for action, given in (("continue-task", {"text": "x"}), ("continue-task", {"flush": True}), ("finish-task", None)):
        assert send(one, action, given) == [] and one.closed is None
    assert events(send(one, "run-task", task="t2")) == ["task-started"]


def test_out_of_order_messages_fail_and_close() -> None:
    for messages in (["continue-task"], ["run-task", "run-task"], ["jump"], ["run-task", "finish-task", "continue-task"]):
        one = Player(DashScope())
        for action in messages:
            send(one, action, {"text": "x"} if action == "continue-task" else None)
        assert one.closed is not None and one.closed.code == 1008 and events(one.sent)[-1] == "task-failed"


def test_a_task_with_all_its_text_at_once() -> None:
    one = Player(DashScope())
    header = {"action": "run-task", "task_id": "t", "streaming": "out"}
    one.receive(json.dumps({"header": header, "payload": {"input": {"text": "Hello"}, "parameters": {"voice": "anna"}}}))
    assert one.texts == {"1": "Hello"} and one.ended == {"1"}


def test_words_are_replaced_as_hot_fix_says() -> None:
    hot_fix = {"pronunciation": [{"草地": "cao3 di4"}], "replace": [{"SQL": "sequel"}, {"AI": "a eye"}]}
    values = started(hot_fix=hot_fix).opened[0].values
    pinyin = {"alphabet": "pinyin", "ph": "cao3 di4"}
    assert json.loads(str(values["lexicon"])) == {"SQL": "sequel", "AI": "a eye", "草地": pinyin}
    check_values(values)
    assert "lexicon" not in started(hot_fix={"pronunciation": []}).opened[0].values


@pytest.mark.parametrize("wrong", [{"replace": ["SQL"]}, {"replace": {"SQL": "sequel"}}, {"pronunciation": "cao3 di4"}])
def test_other_hot_fixes_are_refused(wrong: dict[str, Any]) -> None:
    one = Player(DashScope())
    assert events(send(one, "run-task", voice="anna", hot_fix=wrong)) == ["task-failed"] and one.opened == []
