"""With the watermark every sample of the service is that of the service without it, through the filter: hops, their batches, utterances."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bistream.config import RuntimeConfig
from bistream.errors import EngineError, InvalidInputError
from bistream.token2wav.factory import load_renderer
from bistream.token2wav.hop_jobs import AudioSession
from bistream.token2wav.marking import Marking
from bistream.token2wav.renderer import SpeechRenderer
from bistream.token2wav.service import Token2Wav, Token2WavHop
from bistream.types import AudioOptions, FloatArray, VoicePrompt
from bistream.watermark.filter import MarkFilter

HOPS = (tuple(range(100, 115)), tuple(range(200, 208)), tuple(range(300, 305)))
COSYVOICE_VOICE = VoicePrompt("", np.arange(8, dtype=np.int32), np.full((16, 80), -3.0, np.float32), np.ones(192, np.float32))
SPARK_VOICE = VoicePrompt("", np.zeros(0, np.int32), np.zeros((0, 0), np.float32), np.arange(32, dtype=np.float32))
TIMEOUT_S = 120.0


def heard(config: RuntimeConfig, renderer: SpeechRenderer, voice: VoicePrompt, asks: bool = False) -> tuple[list[FloatArray], FloatArray]:
    """Of hops, and of a whole utterance. asks: for the mark."""
    service = Token2Wav(config, renderer=renderer)
    voices = (voice, *[None] * (len(HOPS) - 1))
    futures = [
        service.hop(Token2WavHop("a", tokens, tokens is HOPS[-1], first, audio=AudioOptions(3, asks)))
        for tokens, first in zip(HOPS, voices, strict=True)
    ]
    hops = [future.result(TIMEOUT_S) for future in futures]
    utterance = service.synthesize(HOPS[-1], voice, AudioOptions(3, asks)).result(TIMEOUT_S)
    service.close()
    return hops, utterance


@pytest.mark.parametrize(
    ("model", "watermark"),
    [("tiny_model_dir", "on"), ("tiny_model_dir", "on_request"), ("tiny_cosyvoice3_dir", "on"), ("tiny_spark_dir", "on")],
)
def test_hops_and_utterances_have_the_mark(model: str, watermark: str, request: pytest.FixtureRequest) -> None:
    model_dir: Path = request.getfixturevalue(model)
    rate, voice = (16_000, SPARK_VOICE) if model == "tiny_spark_dir" else (24_000, COSYVOICE_VOICE)
    mark = MarkFilter.load(rate, rate // 50, torch.device("cpu"))
    config = RuntimeConfig(model_dir=str(model_dir), device="cpu", flow_state_mb=64, max_sessions=4, num_threads=1)
    renderer = load_renderer(config)
    plain, plain_whole = heard(replace(config, watermark="off" if watermark == "on" else watermark), renderer, voice)
    marked, marked_whole = heard(replace(config, watermark=watermark), renderer, voice, asks=watermark == "on_request")
    assert [len(each) for each in plain] == [len(each) for each in marked]
    state = mark.open()
    expected = np.concatenate([mark.push([state], [waveform])[0] for waveform in (plain[0], np.concatenate(plain[1:]))])
    np.testing.assert_array_equal(np.concatenate(marked), expected)  # later hops end between blocks: no bit depends on them
    np.testing.assert_array_equal(marked_whole, mark.push([mark.open()], [plain_whole])[0])
    assert not np.array_equal(expected, np.concatenate(plain))


def test_a_service_without_the_mark_refuses_what_asks_for_it() -> None:
    marking = Marking(None, marks_all=False)
    marking.check(AudioOptions())
    with pytest.raises(InvalidInputError, match="watermark=on_request"):
        marking.check(AudioOptions(is_marked=True))


def test_errors_stay_and_sessions_keep_their_own_state() -> None:
    taps = np.array([1.0, 0.5])  # an echo, one sample later
    marking = Marking(MarkFilter(taps, 4, torch.device("cpu")), marks_all=True)
    one, other = (AudioSession(name, SPARK_VOICE, AudioOptions(), 0.0) for name in "ab")
    refused = InvalidInputError("refused")
    first: list[Any] = marking.hops([one, other], [np.array([0.2, 0.4, 0.6], np.float32), refused])
    assert first[1] is refused
    np.testing.assert_allclose(first[0], [0.2, 0.5, 0.8], atol=1e-6)
    then: list[Any] = marking.hops([other, one], [np.array([value], np.float32) for value in (0.2, 0.1)])
    np.testing.assert_allclose(np.concatenate(then), [0.2, 0.4], atol=1e-6)


def test_a_failure_is_an_error_of_the_sessions_that_were_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = MarkFilter(np.array([1.0]), 4, torch.device("cpu"))

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(mark, "push", fail)
    refused = InvalidInputError("refused")
    marking = Marking(mark, marks_all=True)
    found = marking.hops([AudioSession(name, SPARK_VOICE, AudioOptions(), 0.0) for name in "ab"], [refused, np.zeros(4, np.float32)])
    assert found[0] is refused and isinstance(found[1], EngineError)
    assert isinstance(marking.utterance(np.zeros(4, np.float32), AudioOptions()), EngineError)


def test_a_server_that_marks_on_request_marks_what_asks_for_it_and_nothing_else() -> None:
    mark, sound = MarkFilter(np.array([1.0, 0.5]), 4, torch.device("cpu")), np.full(4, 0.2, np.float32)
    marking = Marking(mark, marks_all=False)
    asking, other = (AudioSession(name, SPARK_VOICE, AudioOptions(is_marked=name == "a"), 0.0) for name in "ab")
    found: list[Any] = marking.hops([other, asking], [sound, sound])
    np.testing.assert_array_equal(found[0], sound)
    np.testing.assert_allclose(found[1], [0.2, 0.3, 0.3, 0.3], atol=1e-6)
    np.testing.assert_array_equal(marking.utterance(sound, AudioOptions()), sound)  # type: ignore[arg-type]
    np.testing.assert_array_equal(marking.utterance(sound, AudioOptions(is_marked=True)), found[1])  # type: ignore[arg-type]
