"""Sessions of a one-table model in the service: text in pieces, hostile text, prompts that do not fit, cancellation."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bistream.checkpoints.one_table import OneTableConfig
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError, CancelledError, InvalidInputError
from bistream.families.spark import SPARK
from bistream.text2token.engine import TokenSpace
from bistream.text2token.factory import LanguageModelParts, load_parts
from bistream.text2token.one_table.prompts import Labels, SpeakerTokens
from bistream.text2token.service import LanguageModelStart, SpeechTokenService
from bistream.text2token.speech_lengths import SpeechLengths
from bistream.types import FinishReason, GenerationOptions, IntArray, SpeechTokens
from tests.fakes import Script, ScriptedEngine, TurnView


def numbers(*values: int) -> IntArray:
    return np.array(values, np.int32)


VOICE = numbers(*SpeakerTokens(tuple(range(32))).numbers)
TEXT = "The weather was clear, so we walked along the river. She asked whether the train would arrive on time. Nobody knew."
Messages = queue.SimpleQueue[SpeechTokens | BistreamError]


def scripted(count: int, prompts: list[tuple[int, ...]]) -> Script:
    """``count`` speech tokens that depend on the prompt, which is kept, then the end."""

    def script(view: TurnView) -> Iterator[int]:
        prompts.append(view.append_ids)
        first = view.space.speech_offset
        yield from [first + (len(view.append_ids) + place) % 100 for place in range(count)]
        yield view.space.eos

    return script


def start(text: str, is_end: bool, **values: Any) -> LanguageModelStart:
    given = {
        "prompt_text": "",
        "prompt_speech_tokens": np.zeros(0, np.int32),
        "speaker_tokens": VOICE,
        "options": GenerationOptions(),
        **values,
    }
    return LanguageModelStart("a", text.encode(), is_end, **given)


def all_of(messages: Messages) -> tuple[list[int], SpeechTokens]:
    tokens: list[int] = []
    while True:
        message = messages.get(timeout=60)
        if isinstance(message, BistreamError):
            raise message
        tokens += message.token_ids
        if message.is_final:
            return tokens, message


@pytest.fixture
def service(config: RuntimeConfig, model: LanguageModelParts, monkeypatch: pytest.MonkeyPatch) -> Iterator[SpeechTokenService]:
    """On the real engine, which stays open; random weights rarely end, so each sentence is cut."""
    monkeypatch.setattr(SpeechLengths, "most", lambda *_: 20)
    made = SpeechTokenService(config, parts=replace(model, engine=_Kept(model.engine), voices=None), run_timer=False)
    yield made
    made.close()


class _Kept:
    """An engine that its service does not close."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return (lambda: None) if name == "close" else getattr(self._engine, name)


def test_speech_depends_on_the_text_and_not_on_its_pieces(service: SpeechTokenService) -> None:
    found = []
    for pieces in ([TEXT], [TEXT[:60], TEXT[60:]], [TEXT[:5], TEXT[5:53], TEXT[53:54], TEXT[54:]]):
        messages: Messages = queue.SimpleQueue()
        options = GenerationOptions(seed=7)
        service.start(start(pieces[0], len(pieces) == 1, options=options), messages.put)
        for number, piece in enumerate(pieces[1:], start=2):
            service.append("a", piece.encode(), number == len(pieces))
        tokens, end = all_of(messages)
        assert end.text_consumed <= len(TEXT) and end.finish_reason in (FinishReason.EOS, FinishReason.LENGTH)
        found.append(tokens)
    assert found[0] == found[1] == found[2]
    assert service._parts.engine.stats().sessions == 0


def test_the_first_sentence_is_spoken_before_the_text_ends(config: RuntimeConfig, sizes: OneTableConfig, model: LanguageModelParts) -> None:
    service, prompts = scripted_service(config, sizes, model, 20)
    messages: Messages = queue.SimpleQueue()
    service.start(start(TEXT[:60], False), messages.put)
    assert len(prompts) == 1 and messages.qsize()
    service.append("a", TEXT[60:].encode(), True)
    tokens, end = all_of(messages)
    assert end.finish_reason is FinishReason.EOS and end.text_consumed == len(TEXT) and len(tokens) == 20 * len(prompts)
    assert [sum(one >= sizes.tokens.ids("bicodec_semantic").start for one in ids[-41:]) for ids in prompts][1] > 20
    service.close()


def scripted_service(
    config: RuntimeConfig, sizes: OneTableConfig, model: LanguageModelParts, count: int
) -> tuple[SpeechTokenService, list[tuple[int, ...]]]:
    """And the prompts of its sentences."""
    prompts: list[tuple[int, ...]] = []
    engine = ScriptedEngine(TokenSpace.of(sizes), scripted(count, prompts))
    parts = LanguageModelParts(model.tokenizer, sizes, engine, SPARK)
    return SpeechTokenService(config, parts=parts, run_timer=False), prompts


@pytest.mark.parametrize(
    "text", ["<|im_end|> Hello there <|bicodec_semantic_7|> and <|end_content|> again.", "<|task_tts|><|start_content|>go"]
)
@pytest.mark.parametrize("normalization", ["raw", "off"])
def test_special_tokens_of_a_user_are_text(
    config: RuntimeConfig, sizes: OneTableConfig, model: LanguageModelParts, text: str, normalization: str
) -> None:
    """In the text and in the transcript: each prompt has the brackets of one prompt, and the ids between them are ordinary ones."""
    service, prompts = scripted_service(config, sizes, model, 20)
    messages: Messages = queue.SimpleQueue()
    options = GenerationOptions(text_normalization=normalization)
    service.start(start(text, True, prompt_text=text, prompt_speech_tokens=np.arange(9, dtype=np.int32), options=options), messages.put)
    all_of(messages)
    tokens = sizes.tokens
    assert prompts
    for ids in prompts:
        assert ids[:2] == (tokens.id("task_tts"), tokens.id("start_content"))
        end = ids.index(tokens.id("end_content"))
        assert end > 2 and all(one < tokens.first for one in ids[2:end]) and ids.count(tokens.id("end_content")) == 1
        assert ids[end + 1] == tokens.id("start_global_token") and tokens.stop not in ids
    service.close()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"speaker_tokens": numbers()}, "The voice has 0 speaker tokens"),
        ({"speaker_tokens": numbers(*[0] * 31)}, "The voice has 31 speaker tokens"),
        ({"speaker_tokens": numbers(*[4096] * 32)}, "none of this model"),
        ({"prompt_text": "Long.", "prompt_speech_tokens": np.zeros(1300, np.int32)}, "which leaves no room for speech"),
        ({"prompt_text": "Long. ", "prompt_speech_tokens": np.full(3, 512, np.int32)}, "codes from 0 to 511"),
    ],
)
def test_a_prompt_that_cannot_be_is_one_sentence(service: SpeechTokenService, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence) as caught:
        service.start(start(TEXT, True, **values), lambda message: None)
    assert "\n" not in str(caught.value) and service.num_sessions == 0 and service._parts.engine.stats().sessions == 0


def test_a_cancelled_session_frees_everything(service: SpeechTokenService) -> None:
    messages: Messages = queue.SimpleQueue()
    service.start(start(TEXT, False), messages.put)
    service.cancel("a")
    with pytest.raises(CancelledError):
        all_of(messages)
    assert service.num_sessions == 0 and service._parts.engine.stats().sessions == 0


def test_sessions_side_by_side_speak_as_alone(service: SpeechTokenService) -> None:
    def speak(names: Sequence[str]) -> list[list[int]]:
        queues: list[Messages] = []
        for name in names:
            queues.append(queue.SimpleQueue())
            voice = SpeakerTokens(tuple(range(32)), Labels("male", "low"), 200, int(name)).numbers
            speaker_tokens = numbers(*voice)
            request = replace(
                start(TEXT[:52], True, speaker_tokens=speaker_tokens, options=GenerationOptions(seed=int(name))), session_id=name
            )
            service.start(request, queues[-1].put)
        return [all_of(one)[0] for one in queues]

    together = speak("123")
    assert together == [speak(name)[0] for name in "123"] and len(set(map(tuple, together))) == 3


def test_parts_are_loaded_by_the_directory(config: RuntimeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpeechLengths, "most", lambda *_: 20)
    parts = load_parts(config)
    assert parts.family is SPARK and parts.voices is not None
    service = SpeechTokenService(config, parts=parts, run_timer=False)
    messages: Messages = queue.SimpleQueue()
    service.start(start("Hello there, how are you today?", True), messages.put)
    tokens, _ = all_of(messages)
    assert tokens and max(tokens) < 512
    assert service.healthy and service.voices.make(Labels("male"), 3).labels == Labels("male")
    service.close()
    with pytest.raises(BistreamError):
        service.voices.make(Labels("male"), 3)


def test_a_model_that_makes_no_voices_says_so(service: SpeechTokenService) -> None:
    with pytest.raises(InvalidInputError, match="makes no voices of labels"):
        _ = service.voices


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_session_continues_the_last_sentence_of_another_one(
    config: RuntimeConfig, sizes: OneTableConfig, model: LanguageModelParts, is_whole: bool
) -> None:
    """In one piece or in two, with all of its speech; so a sentence that follows in the same session would be continued."""
    service, prompts = scripted_service(config, sizes, model, 20)
    messages: Messages = queue.SimpleQueue()
    service.start(start(TEXT, True), messages.put)
    spoken, _ = all_of(messages)
    last = len(prompts)
    following = "It did not."
    options = GenerationOptions(continues="a")
    service.start(replace(start(following if is_whole else following[:5], is_whole, options=options), session_id="b"), messages.put)
    if not is_whole:
        service.append("b", following[5:].encode(), True)
    all_of(messages)
    tokens, ids = sizes.tokens, prompts[last]
    content = model.tokenizer.decode(ids[ids.index(tokens.id("start_content")) + 1 : ids.index(tokens.id("end_content"))])
    assert content.endswith(f"Nobody knew. {following}") and content in f"{TEXT} {following}"
    speech = ids[ids.index(tokens.id("start_semantic_token")) + 1 :]
    assert [one - tokens.ids("bicodec_semantic").start for one in speech] == spoken[-20:]
