"""Stand-ins for the networks, which take the time that the real ones took on a GPU and compute nothing: schedulers, sessions, threads
and messages around them are the real ones. For ``benchmarks/orchestration.py``, which puts them into a model repository.

The times are those of one H200 (docs/log.md): a step of the language model 0.37, 0.73 and 1.58 ms for 1, 64 and 256 rows, a hop of
token2wav 11.3 ms alone and 68 ms for 64 first ones.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence

import numpy as np

from bistream.checkpoint import read_config
from bistream.config import RuntimeConfig
from bistream.gpu.right_of_way import RightOfWay
from bistream.metrics.recorder import Recorder
from bistream.rates import SAMPLES_PER_MEL_FRAME
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.engine import TokenSpace
from bistream.text2token.engine_settings import EngineSettings, settings_of
from bistream.text2token.factory import LanguageModelParts
from bistream.text2token.sequence import StepPlan
from bistream.text2token.service import SpeechTokenService
from bistream.text2token.step_runner import SampledRows
from bistream.text2token.torch_engine import TorchEngine
from bistream.token2wav.renderer import HopsInProgress, Outcome, PoolUse, RendererHop, RendererSizes, Rendering, Utterance, sizes_of
from bistream.token2wav.service import Token2Wav
from bistream.types import FloatArray, VoicePrompt

STEP_S, STEP_S_PER_ROW = 0.37e-3, 4.7e-6
HOP_S, HOP_S_PER_TOKEN = 10.8e-3, 0.052e-3
SOLVER_STEPS = 10
CODES = tuple(random.Random(0).choices(range(1, 100), k=997))  # of speech tokens: a few that repeat would count as a runaway


class Device:
    """Does one piece of work after the other, in the order of the calls."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def run(self, seconds: float) -> float:
        """When this much more work will be done, on the monotonic clock."""
        self._free_at = max(self._free_at, time.monotonic()) + seconds
        return self._free_at


def sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


class TimedStepRunner:
    run_ahead = 2

    def __init__(self, space: TokenSpace, settings: EngineSettings) -> None:
        self.space = space
        self.settings = settings
        self._device = Device()
        self._codes = itertools.cycle(CODES)

    def run(self, plan: StepPlan) -> SampledRows:
        rows = sum(segment.num_rows for segment in plan.segments)
        done_at = self._device.run(STEP_S + STEP_S_PER_ROW * rows)
        codes = list(itertools.islice(self._codes, len(plan.sampling)))

        def wait() -> list[int]:
            sleep_until(done_at)
            return codes

        return wait


class TimedSpeechTokenService(SpeechTokenService):
    def __init__(self, config: RuntimeConfig, recorder: Recorder | None = None) -> None:
        sizes = read_config(config.model_dir).language_model
        settings = settings_of(config, sizes)
        runner = TimedStepRunner(TokenSpace.of(sizes), settings)
        engine = TorchEngine(runner, settings, runner=runner, recorder=recorder)
        super().__init__(config, parts=LanguageModelParts(TextTokenizer.from_model_dir(config.model_dir), sizes, engine))


class TimedRendering:
    needs_preparation = False

    def close(self) -> None:
        return


class TimedUtterance:
    """Only the probe at the start of the server asks for one."""

    def __init__(self, waveform: FloatArray) -> None:
        self._waveform = waveform

    def step(self) -> Outcome | None:
        time.sleep(HOP_S)
        return self._waveform


class TimedHops:
    """Takes ``seconds`` in all, the same for each step."""

    def __init__(self, seconds: float, outcomes: list[Outcome]) -> None:
        self.steps_left = SOLVER_STEPS
        self._step_s = seconds / SOLVER_STEPS
        self._outcomes = outcomes

    def step(self) -> None:
        time.sleep(self._step_s)
        self.steps_left -= 1

    def finish(self) -> list[Outcome]:
        time.sleep(self._step_s * self.steps_left)
        self.steps_left = 0
        return self._outcomes


class TimedRenderer:
    """A ``SpeechRenderer``: silence of the right length, after the right time."""

    tiers = ()
    healthy = True

    def __init__(self, sizes: RendererSizes) -> None:
        self.sizes = sizes

    @property
    def pools(self) -> dict[str, PoolUse]:
        return {}

    def check_tokens(self, token_ids: Sequence[int]) -> list[int]:
        return list(token_ids)

    def check_length(self, tokens: int) -> None:
        return

    def check_prompt(self, prompt: VoicePrompt) -> None:
        return

    def open(self, prompt: VoicePrompt, seed: int, expected_speech_s: float | None = None) -> Rendering:
        return TimedRendering()

    def begin(self, hops: Sequence[RendererHop]) -> HopsInProgress:
        samples = self.sizes.frames_per_token * SAMPLES_PER_MEL_FRAME
        silence: list[Outcome] = [np.zeros(len(hop.token_ids) * samples, np.float32) for hop in hops]
        return TimedHops(HOP_S + HOP_S_PER_TOKEN * sum(len(hop.token_ids) for hop in hops), silence)

    def prepare(self, rendering: Rendering) -> None:
        return

    def begin_utterance(self, token_ids: Sequence[int], prompt: VoicePrompt, seed: int, speed: float) -> Utterance:
        return TimedUtterance(np.zeros(len(token_ids) * self.sizes.frames_per_token * SAMPLES_PER_MEL_FRAME, np.float32))


class TimedToken2Wav(Token2Wav):
    def __init__(self, config: RuntimeConfig, recorder: Recorder | None = None, right_of_way: RightOfWay | None = None) -> None:
        renderer = TimedRenderer(sizes_of(read_config(config.model_dir)))
        super().__init__(config, renderer=renderer, recorder=recorder, right_of_way=right_of_way)
