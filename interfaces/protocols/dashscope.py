"""DashScope's CosyVoice protocol (``/api-ws/v1/inference``): one task after another on a socket, JSON events and binary audio out. Pure.

The text up to a flush, or to the end of the task, is one sentence of the protocol's. Times count from the start of the task's audio.

``enable_ssml`` allows SSML, which stands in ``speak`` and comes in one message, as the vendor documents it. It does not say that the text
is SSML: the vendor's packages set it for every text that is sent whole. So the first text of such a task decides.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bistream.client.spoken_words import WORD, SpokenWord, SpokenWords
from bistream.contract.checks import SSML
from bistream.contract.lexicon import written_lexicon
from bistream.errors import BistreamError, InvalidInputError
from interfaces.audio.formats import OutputFormat, dashscope_format
from interfaces.core.values import Values, instructed
from interfaces.protocols.actions import POLICY_VIOLATION, Action, Append, Cancel, Close, End, Flush, Made, Open, Send
from interfaces.protocols.messages import JsonProtocol, name_in, name_or_none, number_in, object_in, objects_in, text_in

MAX_VOLUME, DEFAULT_VOLUME = 100, 50
_SSML = re.compile(r"[\s\ufeff]*<(?:\?xml|speak)[\s/>]")


@dataclass
class _Sentence:
    """begins: in characters of the task. times: from its first audio on, where words are asked for; words: those that were spoken."""

    index: int
    begins: int
    text: str = ""
    is_flushed: bool = False
    is_begun: bool = False  # its first audio was announced
    times: SpokenWords | None = None
    words: list[SpokenWord] = field(default_factory=list)


@dataclass
class _Task:
    """opening: of the utterance, until a first text tells whether it is SSML; None: it is open."""

    task_id: str
    speech: str
    has_words: bool = False
    opening: Open | None = None
    characters: int = 0
    audio_ms: float = 0.0
    sentence_count: int = 0
    sentences: deque[_Sentence] = field(default_factory=deque)  # not spoken to their ends
    is_ending: bool = False

    def open_sentence(self) -> _Sentence:
        """The one that takes more text."""
        if not self.sentences or self.sentences[-1].is_flushed:
            self.sentences.append(_Sentence(self.sentence_count, self.characters))
            self.sentence_count += 1
        return self.sentences[-1]

    def open(self, text: str = "") -> list[Action]:
        opening, self.opening = self.opening, None
        if opening is None:
            return []
        return [replace(opening, values={**opening.values, "text_type": SSML}) if _SSML.match(text) else opening]

    def cancel(self) -> list[Action]:
        return [Cancel(self.speech)] if self.opening is None else []

    def append(self, text: str) -> None:
        sentence = self.open_sentence()
        sentence.text += text
        self.characters += len(text)
        if sentence.times is not None:
            sentence.times.text += text


class DashScope(JsonProtocol):
    def __init__(self) -> None:
        self._task: _Task | None = None
        self._failed = ""  # the id of the last task that has failed
        self._count = 0

    @property
    def is_idle(self) -> bool:
        return self._task is None or self._task.opening is not None

    def _handle(self, values: dict[str, Any]) -> list[Action]:
        header, payload = object_in(values, "header"), object_in(values, "payload")
        task_id = name_in(header, "task_id")
        if task_id is None:
            raise InvalidInputError("header.task_id must be a string of the client's choice; add it.")
        action, given = text_in(header, "action"), object_in(payload, "input")
        if action == "run-task":
            return self._run(task_id, header, object_in(payload, "parameters"), given)
        if action not in ("continue-task", "finish-task"):
            raise InvalidInputError("header.action must be run-task, continue-task or finish-task; correct it.")
        task = self._task
        if task is None or task.task_id != task_id:
            if action == "finish-task" or task_id == self._failed:
                return []  # it has ended meanwhile
            raise InvalidInputError("No task with this task_id is running; send run-task first.")
        return self._finish(task, given) if action == "finish-task" else self._continue(task, given)

    def _refuse(self, values: dict[str, Any], error: InvalidInputError) -> list[Action]:
        task_id = name_or_none(values.get("header"), "task_id") or ""
        cancelled = [] if self._task is None else self._task.cancel()
        self._task = None
        return [*cancelled, _failed(task_id, error), Close(POLICY_VIOLATION, "InvalidParameter")]

    def _run(self, task_id: str, header: dict[str, Any], parameters: dict[str, Any], given: dict[str, Any]) -> list[Action]:
        if self._task is not None:
            raise InvalidInputError("A task is running on this connection; finish it first, or open another connection.")
        task = _Task(task_id, f"{self._count + 1}", bool(parameters.get("word_timestamp_enabled")))
        voice, gain = text_in(parameters, "voice") or "", _gain_in(parameters)
        task.opening = Open(task.speech, voice, _format_in(parameters), _values_in(parameters), gain)
        made: list[Action] = [*([] if parameters.get("enable_ssml") else task.open()), _event(task_id, "task-started")]
        if text_in(given, "text"):
            made += self._continue(task, given)
        if header.get("streaming") == "out":
            made += self._finish(task, {})
        self._task, self._count = task, self._count + 1  # last: a message that is refused has opened nothing
        return made

    def _continue(self, task: _Task, given: dict[str, Any]) -> list[Action]:
        text = text_in(given, "text") or ""
        if task.is_ending:
            if text.strip():
                raise InvalidInputError("The task is finishing and takes no more text; start another one.")
            return []
        if task.opening is not None and not text.strip(" \t\r\n\ufeff"):
            return []  # the first text says whether it is SSML
        made = task.open(text)
        if text:
            task.append(text)
            made.append(Append(task.speech, text))
        if given.get("flush"):
            task.open_sentence().is_flushed = True
            made.append(Flush(task.speech))
        return made

    def _finish(self, task: _Task, given: dict[str, Any]) -> list[Action]:
        if text_in(given, "directive") == "cancel":
            self._task = None
            return [*task.cancel(), _event(task.task_id, "task-finished")]
        if task.is_ending:
            return []
        task.is_ending = True
        return [*task.open(), End(task.speech)]

    def audio(self, speech: str, made: Made) -> Sequence[Action]:
        task = self._running(speech)
        sentence = task.sentences[0] if task.sentences else task.open_sentence()
        events: list[Action] = []
        if not sentence.is_begun:
            sentence.is_begun = True
            events.append(_result(task.task_id, "sentence-begin", sentence.index, original_text=sentence.text))
            if task.has_words:
                sentence.times = SpokenWords(task.audio_ms / 1000, WORD)
                sentence.times.text = sentence.text
        task.audio_ms += made.duration_ms
        if made.data:
            events += [_result(task.task_id, "sentence-synthesis", sentence.index), Send(made.data)]
        if sentence.times is not None:
            sentence.words += sentence.times.push(made.position - sentence.begins, made.duration_ms / 1000)
        return events

    def flushed(self, speech: str) -> Sequence[Action]:
        return self._end_sentence(self._running(speech))

    def finished(self, speech: str) -> Sequence[Action]:
        task = self._running(speech)
        end = self._end_sentence(task)
        self._task = None
        return [*end, _event(task.task_id, "task-finished", _usage(task))]

    def failed(self, speech: str, error: BistreamError) -> Sequence[Action]:
        task, self._task = self._running(speech), None
        self._failed = task.task_id
        return [_failed(task.task_id, error)]

    def _running(self, speech: str) -> _Task:
        assert self._task is not None and self._task.speech == speech, "events come for the task that runs"
        return self._task

    def _end_sentence(self, task: _Task) -> list[Action]:
        """All of its text has been spoken."""
        if not task.sentences:
            return []
        sentence = task.sentences.popleft()
        if not sentence.is_begun:
            return []  # it has no text, or nothing but blanks
        if sentence.times is not None:
            sentence.words += sentence.times.finish()
        end = _result(task.task_id, "sentence-end", sentence.index, sentence.words, _usage(task), original_text=sentence.text)
        return [end]


def _format_in(parameters: dict[str, Any]) -> OutputFormat:
    """Only opus has a bit rate in this protocol, in kbit/s; others carry one by accident."""
    name = text_in(parameters, "format") or ""
    rate, bit_rate = number_in(parameters, "sample_rate") or 0, number_in(parameters, "bit_rate") or 0
    kbit = round(bit_rate if bit_rate < 1000 else bit_rate / 1000)
    return dashscope_format(name, round(rate), kbit if name.lower() == "opus" and bit_rate else None)


def _values_in(parameters: dict[str, Any]) -> Values:
    values = instructed(text_in(parameters, "instruction"))
    if (seed := number_in(parameters, "seed")) is not None:
        values["seed"] = round(seed)
    if (speed := number_in(parameters, "rate")) is not None and speed != 1:
        values["speed"] = float(speed)
    if lexicon := _lexicon_in(object_in(parameters, "hot_fix")):
        values["lexicon"] = written_lexicon(lexicon)
    return values


def _lexicon_in(hot_fix: dict[str, Any]) -> dict[str, Any]:
    """Its words and what is said instead, or their pinyin. Raises ``InvalidInputError``."""
    replaced = {word: instead for entry in objects_in(hot_fix, "replace") for word, instead in entry.items()}
    spoken = ((word, pinyin) for entry in objects_in(hot_fix, "pronunciation") for word, pinyin in entry.items())
    return {**replaced, **{word: {"alphabet": "pinyin", "ph": pinyin} for word, pinyin in spoken}}


def _gain_in(parameters: dict[str, Any]) -> float:
    """``volume`` as a factor of the amplitude: 50 leaves it as it is, 100 doubles it."""
    volume = number_in(parameters, "volume")
    if volume is not None and not 0 <= volume <= MAX_VOLUME:
        raise InvalidInputError(f"volume must be a number from 0 to {MAX_VOLUME}; correct it.")
    return 1.0 if volume is None else volume / DEFAULT_VOLUME


def _usage(task: _Task) -> dict[str, Any]:
    return {"usage": {"characters": task.characters}}


def _event(task_id: str, name: str, payload: dict[str, Any] | None = None) -> Send:
    return Send({"header": {"task_id": task_id, "event": name, "attributes": {}}, "payload": payload or {}})


def _result(
    task_id: str, kind: str, index: int, words: Sequence[SpokenWord] = (), more: dict[str, Any] | None = None, **fields: Any
) -> Send:
    told = [
        {
            "text": word.text,
            "begin_index": word.begin,
            "end_index": word.end,
            "begin_time": round(1000 * word.begin_s),
            "end_time": round(1000 * word.end_s),
        }
        for word in words
    ]
    output = {"type": kind, "sentence": {"index": index, "words": told}, **fields}
    return _event(task_id, "result-generated", {"output": output, **(more or {})})


def _failed(task_id: str, error: BistreamError) -> Send:
    code = "InvalidParameter" if not error.retryable else "Throttling" if error.code == "BUSY" else "InternalError"
    header = {"task_id": task_id, "event": "task-failed", "error_code": code, "error_message": error.sentence, "attributes": {}}
    return Send({"header": header, "payload": {}})
