"""The renderer of CosyVoice2: flow, then vocoder. Implements ``renderer.SpeechRenderer``; the only module here that loads torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bistream.config import CheckpointConfig, FlowConfig, RuntimeConfig
from bistream.errors import BistreamError, EngineError
from bistream.gpu.tier import TierChoice
from bistream.mel2wav.factory import make_vocoder, vocoder_tier
from bistream.mel2wav.stage import VocoderHop, VocoderStage
from bistream.mel2wav.state import VocoderState
from bistream.token2mel.checks import check_length, check_prompt, check_tokens
from bistream.token2mel.runner import FAILED
from bistream.token2mel.stage import FlowHop, FlowStage
from bistream.token2mel.state import FlowState
from bistream.token2wav.renderer import Outcome, RendererHop, RendererSizes, Rendering
from bistream.types import FloatArray, VoicePrompt

logger = logging.getLogger(__name__)

MAX_FAILURES_IN_A_ROW = 3  # a single failed batch may be due to its inputs


@dataclass(eq=False)
class StagesRendering:
    """``renderer.Rendering``: one session's state in each stage."""

    flow: FlowState
    vocoder: VocoderState

    def close(self) -> None:
        self.flow.close()
        self.vocoder.close()


class SpeechStages:
    def __init__(self, flow: FlowStage, vocoder: VocoderStage, sizes: RendererSizes, tiers: tuple[TierChoice, ...] = ()) -> None:
        self.flow = flow
        self.vocoder = vocoder
        self.sizes = sizes
        self.tiers = tiers
        self._checks: FlowConfig = flow.config
        self._failures_in_a_row = 0

    @classmethod
    def load(cls, config: RuntimeConfig, checkpoint: CheckpointConfig, sizes: RendererSizes) -> SpeechStages:
        """Read the weights of the model directory. Raises ``ConfigError`` or ``CheckpointError``."""
        flow = FlowStage(config, checkpoint)
        choice = vocoder_tier(config, checkpoint)
        return cls(flow, make_vocoder(config, checkpoint, choice), sizes, (*flow.tiers, choice))

    @property
    def healthy(self) -> bool:
        """False after repeated failures: a CUDA error, for example, lasts until the process ends."""
        return self._failures_in_a_row < MAX_FAILURES_IN_A_ROW

    def check_tokens(self, token_ids: Sequence[int]) -> list[int]:
        return check_tokens(token_ids, self._checks)

    def check_length(self, tokens: int) -> None:
        check_length(tokens, self._checks)

    def check_prompt(self, prompt: VoicePrompt) -> None:
        check_prompt(prompt, self._checks)

    @torch.inference_mode()
    def open(self, prompt: VoicePrompt, seed: int) -> Rendering:
        try:
            flow = self.flow.open(prompt)
            try:
                return StagesRendering(flow, self.vocoder.open(seed))
            except BaseException:
                flow.close()
                raise
        except BistreamError:
            raise
        except Exception:
            raise self._computing_failed() from None

    @torch.inference_mode()
    def hop(self, hops: Sequence[RendererHop]) -> list[Outcome]:
        """One flow call and one vocoder call over all hops."""
        outcomes: dict[int, Outcome] = {}
        try:
            self._speak(hops, outcomes)
            self._observe(list(outcomes.values()))
        except Exception:
            error = self._computing_failed()
            for index in range(len(hops)):
                outcomes.setdefault(index, error)
        return [outcomes[index] for index in range(len(hops))]

    @torch.inference_mode()
    def synthesize(self, token_ids: Sequence[int], prompt: VoicePrompt, seed: int, speed: float) -> Outcome:
        try:
            mel = self.flow.synthesize(token_ids, prompt)
            outcome = _checked(self.vocoder.synthesize(mel, seed, speed))
        except BistreamError as error:
            outcome = error
        except Exception:
            return self._computing_failed()
        self._observe([outcome])
        return outcome

    def _speak(self, hops: Sequence[RendererHop], outcomes: dict[int, Outcome]) -> None:
        renderings = [_own(hop.rendering) for hop in hops]
        flow_hops = [FlowHop(place.flow, hop.token_ids, hop.finalize) for place, hop in zip(renderings, hops, strict=True)]
        spoken: list[int] = []
        vocoder_hops: list[VocoderHop] = []
        for index, mel in enumerate(self.flow.hop(flow_hops)):
            if isinstance(mel, BistreamError):
                outcomes[index] = mel
            else:
                spoken.append(index)
                vocoder_hops.append(VocoderHop(renderings[index].vocoder, mel, hops[index].finalize))
        for index, waveform in zip(spoken, self.vocoder.hop(vocoder_hops), strict=True):
            outcomes[index] = _checked(waveform)

    def _observe(self, outcomes: Sequence[Outcome]) -> None:
        """The flow catches its own exceptions (they fail a group, not the call): a batch of which nothing succeeded counts as a failure."""
        if any(not isinstance(outcome, BistreamError) for outcome in outcomes):
            self._failures_in_a_row = 0
        elif any(isinstance(outcome, EngineError) and outcome.sentence == FAILED for outcome in outcomes):
            self._failures_in_a_row += 1

    def _computing_failed(self) -> EngineError:
        """Logs the exception being handled; the caller gets one sentence."""
        logger.exception("computing speech failed")
        self._failures_in_a_row += 1
        return EngineError("Computing the speech failed; open a new session and try again.")


def _own(rendering: Rendering) -> StagesRendering:
    assert isinstance(rendering, StagesRendering), "a rendering of another renderer"
    return rendering


def _checked(waveform: FloatArray) -> Outcome:
    if np.isfinite(waveform).all():
        return waveform
    return EngineError("The audio contains NaN or infinity; check the voice prompt of this session.")
