"""The speech renderer's interface: requirements on a checkpoint, and a service on a renderer without any network."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bistream.checkpoints.config import CheckpointConfig, EstimatorConfig, FlowConfig, VocoderConfig
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError, BusyError, CheckpointError, EngineError, InvalidInputError
from bistream.gpu.tier import Tier, TierChoice
from bistream.token2wav.renderer import (
    HopsInProgress,
    Outcome,
    PoolUse,
    RendererHop,
    RendererSizes,
    Rendering,
    SpeechRenderer,
    Utterance,
    sizes_of,
)
from bistream.token2wav.service import Token2Wav, Token2WavHop
from bistream.types import FloatArray, VoicePrompt
from tests.formats import SAMPLE_RATE, SAMPLES_PER_TOKEN, SPEECH_TOKENS_PER_SECOND

TIMEOUT_S = 120.0
OTHER_SIZES = RendererSizes(SAMPLE_RATE, samples_per_frame=480, frames_per_token=2, mel_bins=96, speaker_embedding_size=256)


def test_sizes_come_from_the_checkpoint() -> None:
    sizes = sizes_of(CheckpointConfig())
    assert (sizes.mel_bins, sizes.speaker_embedding_size) == (80, 192)
    assert sizes.tokens_per_second == SPEECH_TOKENS_PER_SECOND
    wide = CheckpointConfig(
        flow=FlowConfig(output_size=96, spk_embed_dim=256, estimator=EstimatorConfig(out_channels=96)),
        vocoder=VocoderConfig(in_channels=96),
    )
    assert sizes_of(wide) == OTHER_SIZES


@pytest.mark.parametrize(
    ("flow", "vocoder", "words"),
    [
        (FlowConfig(output_size=96), VocoderConfig(), "96 mel bins"),
        (FlowConfig(), VocoderConfig(in_channels=96), "expects 96"),
        (FlowConfig(), VocoderConfig(sampling_rate=22050), "22050 Hz"),
        (FlowConfig(), VocoderConfig(upsample_rates=(8, 8)), "256 samples per mel frame"),
        (FlowConfig(token_mel_ratio=4), VocoderConfig(), "4 frames per token"),
    ],
)
def test_a_checkpoint_at_other_rates_is_refused(flow: FlowConfig, vocoder: VocoderConfig, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        sizes_of(CheckpointConfig(flow=flow, vocoder=vocoder))


@dataclasses.dataclass(eq=False)
class Place:
    spoken: int = 0
    closed: bool = False
    needs_preparation: bool = False

    def close(self) -> None:
        self.closed = True


@dataclasses.dataclass(eq=False)
class Spelling:
    """An utterance, one token with every step."""

    token_ids: list[int]
    spoken: int = 0

    def step(self) -> Outcome | None:
        self.spoken += 1
        return NumberRenderer._speak(self.token_ids) if self.spoken == len(self.token_ids) else None


@dataclasses.dataclass
class AtOnce:
    """Hops that cannot stop."""

    outcomes: list[Outcome]
    steps_left: int = 1

    def step(self) -> None:
        self.steps_left = 0

    def finish(self) -> list[Outcome]:
        return self.outcomes


class NumberRenderer:
    """Renders every token as samples that hold its number; no tensors. Token 13 fails its rendering, tokens from 100 on are unknown."""

    sizes = OTHER_SIZES
    tiers = (TierChoice("flow", Tier.PLAIN, "cpu", ()),)
    healthy = True

    def __init__(self, places: int = 8) -> None:
        self.free_places = places
        self.places: list[Place] = []

    def check_tokens(self, token_ids: Sequence[int]) -> list[int]:
        if any(token >= 100 for token in token_ids):
            raise InvalidInputError("Only tokens below 100 can be spoken; send others.")
        return list(token_ids)

    def check_length(self, tokens: int) -> None:
        if tokens > 50:
            raise InvalidInputError("At most 50 tokens; send fewer.")

    def check_prompt(self, prompt: VoicePrompt) -> None:
        if prompt.speaker_embedding.shape != (self.sizes.speaker_embedding_size,):
            raise InvalidInputError("Send an embedding of 256 values.")

    def open(self, prompt: VoicePrompt, seed: int, expected_speech_s: float | None = None) -> Rendering:
        if len(self.places) == self.free_places:
            raise BusyError("No place is left; try again later.")
        self.places.append(Place())
        return self.places[-1]

    @property
    def pools(self) -> dict[str, PoolUse]:
        return {}

    def begin(self, hops: Sequence[RendererHop]) -> HopsInProgress:
        return AtOnce(self._hop(hops))

    def _hop(self, hops: Sequence[RendererHop]) -> list[Outcome]:
        assert hops and len({id(hop.rendering) for hop in hops}) == len(hops)
        return [EngineError("It failed; try again.") if 13 in hop.token_ids else self._speak(hop.token_ids) for hop in hops]

    def prepare(self, rendering: Rendering) -> None:
        assert isinstance(rendering, Place)
        rendering.needs_preparation = False

    def begin_utterance(self, token_ids: Sequence[int], prompt: VoicePrompt, seed: int, speed: float) -> Utterance:
        return Spelling(list(token_ids))

    @staticmethod
    def _speak(token_ids: Sequence[int]) -> Outcome:
        return np.repeat(np.asarray(token_ids, np.float32), SAMPLES_PER_TOKEN)


def voice(size: int = 256) -> VoicePrompt:
    return VoicePrompt("", np.zeros(0, np.int32), np.zeros((0, 96), np.float32), np.ones(size, np.float32))


def make_service(renderer: SpeechRenderer) -> Token2Wav:
    return Token2Wav(RuntimeConfig(drain_timeout_s=0.0), renderer=renderer)


def speak(service: Token2Wav, session_id: str, *tokens: int, **values: Any) -> Outcome:
    future = service.hop(Token2WavHop(session_id, tokens, **{"finalize": False, "prompt": None, **values}))
    error = future.exception(TIMEOUT_S)
    assert error is None or isinstance(error, BistreamError)
    return future.result() if error is None else error


def spoken(*tokens: int) -> FloatArray:
    """The samples that ``NumberRenderer`` makes of these tokens."""
    return np.repeat(np.array(tokens, np.float32), SAMPLES_PER_TOKEN)


def assert_speaks(outcome: Outcome, *tokens: int) -> None:
    assert not isinstance(outcome, BistreamError), outcome
    np.testing.assert_array_equal(outcome, spoken(*tokens))


def test_the_service_needs_only_the_renderer_protocol() -> None:
    renderer = NumberRenderer()
    service = make_service(renderer)
    assert service.sizes is OTHER_SIZES and service.tiers == NumberRenderer.tiers and service.healthy
    assert_speaks(speak(service, "a", 1, 2, prompt=voice()), 1, 2)
    assert_speaks(speak(service, "a"))  # renews the lease: nothing is computed
    assert_speaks(speak(service, "a", 3, finalize=True), 3)
    assert_speaks(service.synthesize([4], voice()).result(TIMEOUT_S), 4)
    service.close()
    assert [place.closed for place in renderer.places] == [True]


def test_a_refusal_of_the_renderer_is_the_answer_to_its_session() -> None:
    renderer = NumberRenderer(places=2)
    service = make_service(renderer)
    assert isinstance(speak(service, "a", 100, prompt=voice()), InvalidInputError)
    assert isinstance(speak(service, "a", 1, prompt=voice(192)), InvalidInputError)
    assert isinstance(speak(service, "a", *range(51), prompt=voice()), InvalidInputError)
    assert renderer.places == []
    assert isinstance(speak(service, "a", 13, prompt=voice()), EngineError)
    assert isinstance(speak(service, "b", 1, prompt=voice()), np.ndarray)
    assert isinstance(speak(service, "c", 1, prompt=voice()), BusyError)
    assert isinstance(speak(service, "b", 1), np.ndarray)
    service.close()
    assert all(place.closed for place in renderer.places)
