"""The renderer of both families: flow, then vocoder. Implements ``renderer.SpeechRenderer``; the only module here that loads torch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from bistream.checkpoints.config import CheckpointConfig, FlowConfig
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError, EngineError
from bistream.gpu.device import open_device, resolve_device
from bistream.gpu.steps import Steps
from bistream.gpu.tier import TierChoice
from bistream.mel2wav.factory import make_vocoder, vocoder_tier
from bistream.mel2wav.stage import VocoderHop
from bistream.mel2wav.state import VocoderSessionState
from bistream.mel2wav.stretch import MelStretch
from bistream.mel2wav.vocoder import Vocoder
from bistream.processes.start_phases import phase
from bistream.token2mel.checks import check_length, check_prompt, check_tokens
from bistream.token2mel.solving import FAILED
from bistream.token2mel.stage import FlowHop, FlowHops, FlowStage
from bistream.token2mel.state import FlowState
from bistream.token2mel.state_budget import reserved_pages, shortage
from bistream.token2wav import vocoder_ahead
from bistream.token2wav.fidelity import within_bounds
from bistream.token2wav.renderer import FLOW_PAGES, VOCODER_SLOTS, Outcome, PoolUse, RendererHop, RendererSizes, Rendering, Utterance
from bistream.types import FloatArray, VoicePrompt

logger = logging.getLogger(__name__)

# Of offline synthesis, at least: on a CPU a step is what lies between two pauses of a network, usually more. On a GPU it is the time
# to launch kernels, which may run several times as long: every step waits for them, or a hop would have to.
STEP_S = 0.002
MAX_FAILURES_IN_A_ROW = 3  # a single failed batch may be due to its inputs


@dataclass(eq=False)
class StagesRendering:
    """``renderer.Rendering``: one session's state in each stage."""

    flow: FlowState
    vocoder: VocoderSessionState
    stage: FlowStage
    stretch: MelStretch = field(default_factory=MelStretch)

    @property
    def needs_preparation(self) -> bool:
        return self.stage.needs_preparation(self.flow)

    def close(self) -> None:
        self.flow.close()
        self.vocoder.close()


class StagesHops:
    """``renderer.HopsInProgress``: the flow step by step, with the last one the vocoder over all hops."""

    def __init__(self, stages: SpeechStages, hops: Sequence[RendererHop]) -> None:
        self._stages = stages
        self._hops = hops
        self._renderings = [_own(hop.rendering) for hop in hops]
        self._outcomes: dict[int, Outcome] = {}
        self._flow: FlowHops | None = None
        self._is_done = False
        self._try(self._begin)

    @property
    def steps_left(self) -> int:
        if self._is_done or self._flow is None:
            return 0
        return max(1, self._flow.steps_left)

    def step(self) -> None:
        self._try(self._advance)
        if self._stages.flow.device.type == "cuda":
            self._try(torch.cuda.current_stream(self._stages.flow.device).synchronize)  # errors of what was launched come out here

    def finish(self) -> list[Outcome]:
        while self.steps_left:
            self._try(self._advance)
        return [self._outcomes[index] for index in range(len(self._hops))]

    @torch.inference_mode()
    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            error = self._stages.computing_failed()
            for index in range(len(self._hops)):
                self._outcomes.setdefault(index, error)
            self._is_done = True
            if self._flow is not None:
                self._flow.abandon(error.sentence)

    def _begin(self) -> None:
        for place, hop in zip(self._renderings, self._hops, strict=True):
            place.stretch.expect(len(hop.token_ids) * self._stages.sizes.frames_per_token, hop.speed)
        self._flow = self._stages.flow.begin(
            [FlowHop(place.flow, hop.token_ids, hop.finalize) for place, hop in zip(self._renderings, self._hops, strict=True)]
        )

    def _advance(self) -> None:
        assert self._flow is not None
        if self._flow.steps_left:
            self._flow.step()
        if self._flow.steps_left:
            return
        spoken: list[int] = []
        vocoder_hops: list[VocoderHop] = []
        for index, mel in enumerate(self._flow.results):
            if isinstance(mel, BistreamError):
                self._outcomes[index] = mel
            else:
                spoken.append(index)
                place, finalize = self._renderings[index], self._hops[index].finalize
                vocoder_hops.append(VocoderHop(place.vocoder, place.stretch.push(mel, finalize), finalize))
        for index, waveform in zip(spoken, self._stages.vocoder.hop(vocoder_hops), strict=True):
            self._outcomes[index] = _checked(waveform)
        self._is_done = True
        self._stages.observe(list(self._outcomes.values()))


class SpeechStages:
    def __init__(self, flow: FlowStage, vocoder: Vocoder, sizes: RendererSizes, tiers: tuple[TierChoice, ...] = ()) -> None:
        self.flow = flow
        self.vocoder = vocoder
        self.sizes = sizes
        self.tiers = tiers
        self._checks: FlowConfig = flow.config
        self._failures_in_a_row = 0

    @classmethod
    def load(
        cls, config: RuntimeConfig, checkpoint: CheckpointConfig, sizes: RendererSizes, session_s: float | None = None
    ) -> SpeechStages:
        """Read the weights of the model directory. session_s: as for ``FlowStage``. Raises ``ConfigError`` or ``CheckpointError``."""
        open_device(resolve_device(config.device))
        of_flow, of_vocoder = within_bounds(config, checkpoint)
        choice = vocoder_tier(of_vocoder, checkpoint)
        with vocoder_ahead.compiling(of_vocoder, checkpoint, choice):
            flow = FlowStage(of_flow, checkpoint, session_s=session_s)
        speech_s = None if flow.left_context_chunks else config.reserved_speech_s or None
        reserve = reserved_pages(speech_s, flow.reserve_chunks, flow.page_s)
        if (warning := shortage(flow.pool.total, reserve, flow.page_s, config.max_sessions)) is not None:
            logger.warning(warning)
        with phase(f"vocoder: {choice.tier.value}"):
            vocoder = make_vocoder(of_vocoder, checkpoint, choice)
        rounding_is_free = flow.device.type != "cpu"  # matrix libraries of CPUs sum by the shape of a product
        chunks_join = flow.chunks_join and vocoder.joins_exactly and rounding_is_free
        return cls(flow, vocoder, replace(sizes, shares_batches=rounding_is_free, chunks_join=chunks_join), (*flow.tiers, choice))

    @property
    def healthy(self) -> bool:
        """False after repeated failures: a CUDA error, for example, lasts until the process ends."""
        return self._failures_in_a_row < MAX_FAILURES_IN_A_ROW

    @property
    def pools(self) -> dict[str, PoolUse]:
        flow, pool = self.flow, self.flow.pool
        most = flow.reserve_chunks if flow.left_context_chunks else -(-flow.max_tokens // flow.chunk_tokens)
        pools = {FLOW_PAGES: PoolUse(pool.total - pool.free_pages, pool.total, flow.reserve_chunks, most, pool.promised_pages)}
        if (slots := self.vocoder.slots) is not None:
            pools[VOCODER_SLOTS] = PoolUse(*slots)
        return pools

    def check_tokens(self, token_ids: Sequence[int]) -> list[int]:
        return check_tokens(token_ids, self._checks)

    def check_length(self, tokens: int) -> None:
        check_length(tokens, self._checks)

    def check_prompt(self, prompt: VoicePrompt) -> None:
        check_prompt(prompt, self._checks)

    @torch.inference_mode()
    def open(self, prompt: VoicePrompt, seed: int, expected_speech_s: float | None = None) -> Rendering:
        try:
            flow = self.flow.open(prompt, expected_speech_s)
            try:
                return StagesRendering(flow, self.vocoder.open(seed), self.flow)
            except BaseException:
                flow.close()
                raise
        except BistreamError:
            raise
        except Exception:
            raise self.computing_failed() from None

    def begin(self, hops: Sequence[RendererHop]) -> StagesHops:
        return StagesHops(self, hops)

    @torch.inference_mode()
    def prepare(self, rendering: Rendering) -> None:
        state = _own(rendering).flow
        try:
            self.flow.prepare(state)
        except Exception:
            state.fail(self.computing_failed().sentence)

    def begin_utterance(self, token_ids: Sequence[int], prompt: VoicePrompt, seed: int, speed: float) -> Utterance:
        steps = self._utterance(token_ids, prompt, seed, speed)
        while True:
            yield self._advance(steps)

    def _utterance(self, token_ids: Sequence[int], prompt: VoicePrompt, seed: int, speed: float) -> Steps[Outcome]:
        """Raises what the stages raise."""
        mel = yield from self.flow.synthesis(token_ids, prompt)
        yield
        outcome = _checked((yield from self.vocoder.synthesis(mel, seed, speed)))
        self.observe([outcome])
        return outcome

    @torch.inference_mode()
    def _advance(self, steps: Steps[Outcome]) -> Outcome | None:
        """Run an utterance for about ``STEP_S``, and wait for the device; its outcome when it is done."""
        end_s = time.monotonic() + STEP_S
        try:
            while True:
                next(steps)
                if time.monotonic() >= end_s:
                    break
            if self.flow.device.type == "cuda":
                torch.cuda.current_stream(self.flow.device).synchronize()
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        except BistreamError as error:
            self.observe([error])
            return error
        except Exception:
            return self.computing_failed()
        return None

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """The flow catches its own exceptions (they fail a group, not the call): a batch of which nothing succeeded counts as a failure."""
        if any(not isinstance(outcome, BistreamError) for outcome in outcomes):
            self._failures_in_a_row = 0
        elif any(isinstance(outcome, EngineError) and outcome.sentence == FAILED for outcome in outcomes):
            self._failures_in_a_row += 1

    def computing_failed(self) -> EngineError:
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
