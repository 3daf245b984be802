"""The ports in a server: requests fit the contract, and every answer and error arrives unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.contract.codec import CallInputs, Values, to_array
from bistream.contract.fields import CONTRACTS, LLM_BISTREAM
from bistream.errors import (
    BistreamError,
    EngineError,
    SessionTimeoutError,
    UnknownSessionError,
)
from bistream.processes.control_files import CONTROL_VARIABLE
from bistream.sessions.ports import LanguageModelPort, Ports
from bistream.text2token.one_table.prompts import Labels
from bistream.text2token.service import LanguageModelStart
from bistream.token2wav.service import Token2WavHop
from bistream.transport.sibling_ports import (
    RELOAD_ATTEMPTS,
    SiblingModels,
    SiblingVoice,
    speech_token_values,
    speech_tokens,
)
from bistream.triton.mailbox import TokenMailbox
from bistream.types import AudioOptions, FinishReason, GenerationOptions, SpeechBreak, SpeechTokens, TokenDemand, VoicePrompt
from tests.unit.transport.siblings import Answer, Siblings
from tests.unit.triton.fakes import Arrays, FakePbUtils, FakeResponse, error_response, response

Result = TypeVar("Result")
CONTRACT = {contract.name: contract for contract in CONTRACTS}
WIRE_TYPES = {"object": "BYTES", "bool": "BOOL", "int32": "INT32", "int64": "INT64", "float32": "FP32"}
PROMPT = VoicePrompt("said", np.arange(3, dtype=np.int32), np.ones((6, 80), np.float32), np.ones(192, np.float32))


LOOP = asyncio.new_event_loop()  # a direct channel belongs to one


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    return LOOP.run_until_complete(coroutine)


Ask = Callable[[Callable[[str, Values], Answer]], tuple[Ports, Siblings]]


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Ask]:
    made: list[SiblingModels | Siblings] = []
    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path))

    def make(answer: Callable[[str, Values], Answer]) -> tuple[Ports, Siblings]:
        siblings, models = Siblings(answer), SiblingModels(FakePbUtils())
        made.extend((models, siblings))
        return models.ports, siblings

    yield make
    for one in made:
        one.close()


async def take_all(port: LanguageModelPort, wanted_tokens: int) -> list[SpeechTokens]:
    messages = [await port.take("s", TokenDemand(wanted_tokens))]
    while not messages[-1].is_final:
        messages.append(await port.take("s", TokenDemand(wanted_tokens)))
    return messages


def check_fits(model: str, values: Values) -> None:
    """What the contract does not have would be lost."""
    specs = CONTRACT[model].by_name
    for name, value in values.items():
        array = value if isinstance(value, np.ndarray) else to_array(specs[name], value)
        assert WIRE_TYPES[str(array.dtype)] == specs[name].datatype and specs[name].fits(array.shape) and array.size > 0
    assert all(spec.optional or spec.name in values for spec in specs.values())


def start(**changes: Any) -> LanguageModelStart:
    values = {"session_id": "s", "text": b"Hi", "is_end": False, "prompt_text": "said", "prompt_speech_tokens": PROMPT.speech_tokens}
    options = GenerationOptions(3, 0.5, 4, 0.25, "softly", "zh", "earlier")
    return LanguageModelStart(**{**values, "options": options, **changes})


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(0, 6560), max_size=20),
    st.integers(0, 4000),
    st.one_of(st.none(), st.sampled_from([FinishReason.EOS, FinishReason.LENGTH, FinishReason.CANCELLED])),
)
def test_speech_tokens_survive_the_hop(token_ids: list[int], text_consumed: int, reason: FinishReason | None) -> None:
    attended = text_consumed if text_consumed % 2 else None
    message = SpeechTokens(tuple(token_ids), text_consumed, reason, reason is None, text_consumed + 3, text_consumed, attended)
    breaks = tuple(SpeechBreak(place, 8, 100 * place) for place in range(len(token_ids) // 8))
    message = message._replace(breaks=breaks)
    assert speech_tokens(speech_token_values(message)) == message


def speaking_model(*posts: SpeechTokens | BistreamError) -> Callable[[str, Values], Answer]:
    """``llm_bistream`` with one session, which has posted all these messages before the first request for tokens."""
    mailbox = TokenMailbox()

    def answer(model: str, values: Values) -> Answer:
        if values.get("is_start", True):
            for message in posts:
                mailbox.post(message)
            return {}
        answers: list[SpeechTokens | BistreamError] = []
        mailbox.take(answers.append)
        (message,) = answers
        return message if isinstance(message, BistreamError) else speech_token_values(message)

    return answer


@pytest.mark.parametrize("slack_s", [None, 0.0, 1.5])
def test_a_pull_says_for_how_long_its_listener_has_audio(ports: Ask, slack_s: float | None) -> None:
    speaking, siblings = ports(speaking_model(SpeechTokens((1,), 5, FinishReason.EOS)))
    run(speaking.language_model.start(start()))
    run(speaking.language_model.take("s", TokenDemand(7, slack_s)))
    _, (model, values) = siblings.calls
    check_fits(model, values)
    assert (values["wanted_tokens"], values.get("slack_s")) == (7, slack_s)


def test_tokens_that_came_before_an_error_are_spoken_before_it_is_raised(ports: Ask) -> None:
    speaking, _ = ports(speaking_model(SpeechTokens((1, 2), 3), SessionTimeoutError("Nothing came.", "s")))
    run(speaking.language_model.start(start()))
    assert run(speaking.language_model.take("s", TokenDemand(1))) == SpeechTokens((1, 2), 3)
    with pytest.raises(SessionTimeoutError, match="Nothing came"):
        run(speaking.language_model.take("s", TokenDemand(1)))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("Stub process 'audio_tokenizer_0_0' is not healthy.", EngineError),
        ("INTERNAL: The server failed unexpectedly; see its log for the reason.", EngineError),
    ],
)
def test_tritons_own_messages_do_not_reach_the_client(words: str, expected: type[BistreamError]) -> None:
    voice = SiblingVoice(FakePbUtils(lambda model, arrays: [error_response(words)]), lambda seconds: None)
    with pytest.raises(expected) as failure:
        voice.prompt_speech_tokens(np.zeros(16000, np.float32))
    assert "audio_tokenizer" not in failure.value.sentence


NOT_LOADED = "Model audio_tokenizer - Error when running inference: Server not ready"


@pytest.mark.parametrize("refusals", [0, 1, RELOAD_ATTEMPTS - 1])
def test_a_recording_waits_for_a_model_that_is_being_loaded(refusals: int) -> None:
    answers = [error_response(NOT_LOADED)] * refusals + [response(prompt_speech_tokens=np.arange(3, dtype=np.int32))]
    pauses: list[float] = []
    voice = SiblingVoice(FakePbUtils(lambda model, arrays: [answers.pop(0)]), pauses.append)
    assert voice.prompt_speech_tokens(np.zeros(16000, np.float32)).tolist() == [0, 1, 2]
    assert len(pauses) == refusals


def test_a_model_that_is_not_loaded_in_time_is_an_error_that_can_be_retried() -> None:
    pauses: list[float] = []
    voice = SiblingVoice(FakePbUtils(lambda model, arrays: [error_response(NOT_LOADED)]), pauses.append)
    with pytest.raises(EngineError, match="being loaded"):
        voice.speaker_features(np.zeros(16000, np.float32))
    assert 2.0 <= sum(pauses) <= 5.0


def test_a_recording_that_killed_its_model_is_not_sent_again() -> None:
    calls: list[str] = []

    def answer(model: str, arrays: Arrays) -> list[FakeResponse]:
        calls.append(model)
        return [error_response("Stub process 'audio_tokenizer_0_0' is not healthy.")]

    voice = SiblingVoice(FakePbUtils(answer), lambda seconds: None)
    with pytest.raises(EngineError):
        voice.prompt_speech_tokens(np.zeros(16000, np.float32))
    assert calls == ["audio_tokenizer"]


def test_a_voice_of_labels_is_one_call_of_the_language_model(ports: Ask) -> None:
    speaking, siblings = ports(lambda model, values: {"made_voice": tuple(range(37))})
    made = speaking.voice.speaker_of_labels(Labels("female", "high"), 7)
    assert made.tolist() == list(range(37)) and made.dtype == np.int32
    ((model, values),) = siblings.calls
    inputs = CallInputs(values, LLM_BISTREAM)
    assert model == "llm_bistream" and inputs.read(Labels) == Labels("female", "high", "moderate") and inputs.value("seed") == 7


@pytest.mark.parametrize("is_end", [True, False])
def test_append_and_cancel_wait_until_they_are_accepted(ports: Ask, is_end: bool) -> None:
    speaking, siblings = ports(lambda model, values: {})
    run(speaking.language_model.append("s", b"\xe4", is_end))
    run(speaking.language_model.cancel("s"))
    run(speaking.token2wav.cancel("s"))
    for model, values in siblings.calls:
        check_fits(model, values)
    append, cancel, other = (values for _, values in siblings.calls)
    assert (append["text"], append["is_end"], append["is_start"]) == (b"\xe4", is_end, False)
    assert cancel["is_cancel"] and other["is_cancel"]


def test_cancelling_an_ended_session_is_not_an_error(ports: Ask) -> None:
    speaking, _ = ports(lambda model, values: UnknownSessionError("Gone."))
    run(speaking.language_model.cancel("s"))
    run(speaking.token2wav.cancel("s"))
    with pytest.raises(UnknownSessionError):
        run(speaking.language_model.append("s", b"", True))


@pytest.mark.parametrize("is_marked", [False, True])
def test_the_first_hop_and_a_whole_utterance_say_whether_they_are_marked(ports: Ask, is_marked: bool) -> None:
    speaking, siblings = ports(lambda model, values: {"waveform": np.zeros(1, np.float32)})
    audio = AudioOptions(3, is_marked)
    voice = VoicePrompt("", np.zeros(0, np.int32), np.zeros((0, 80), np.float32), np.ones(192, np.float32))
    run(speaking.token2wav.hop(Token2WavHop("s", (1,), finalize=False, prompt=voice, audio=audio)))
    run(speaking.token2wav.synthesize([1], voice, audio, 1.0, "s"))
    for model, values in siblings.calls:
        check_fits(model, values)
        assert (values["seed"], values["is_marked"]) == (3, is_marked)


def test_a_request_without_an_answer_is_an_engine_error(ports: Ask) -> None:
    speaking, _ = ports(lambda model, values: {})
    with pytest.raises(EngineError):
        run(speaking.token2wav.hop(Token2WavHop("s", (1,), finalize=False)))


def test_answers_do_not_point_into_shared_memory() -> None:
    shared = np.zeros(4, np.float32)
    voice = SiblingVoice(FakePbUtils(lambda model, arrays: [response(prompt_speech_tokens=shared)]))
    assert not np.shares_memory(voice.prompt_speech_tokens(np.zeros(16000, np.float32)), shared)
