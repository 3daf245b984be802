"""Flow and vocoder in a row: a batch of jobs in, one waveform or error per job out. On the worker thread of ``token2wav``.

An error that belongs to one session is that session's outcome; anything unexpected is the outcome of all jobs of the batch
that have none yet. Nothing is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch

from bistream.checkpoint import read_config
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError, EngineError
from bistream.mel2wav.factory import make_vocoder
from bistream.mel2wav.stage import VocoderHop, VocoderStage
from bistream.token2mel.runner import FAILED
from bistream.token2mel.stage import FlowHop, FlowStage
from bistream.token2wav.hop_jobs import HopJob, OfflineJob
from bistream.types import FloatArray

logger = logging.getLogger(__name__)

Outcome = FloatArray | BistreamError
MAX_FAILURES_IN_A_ROW = 3  # one bad batch may be the fault of what was in it


class SpeechStages:
    """All methods on one thread."""

    def __init__(self, flow: FlowStage, vocoder: VocoderStage) -> None:
        self.flow = flow
        self.vocoder = vocoder
        self._failures_in_a_row = 0

    @classmethod
    def load(cls, config: RuntimeConfig) -> SpeechStages:
        """Read the model directory. Raises ``ConfigError`` or ``CheckpointError``."""
        checkpoint = read_config(config.model_dir)
        return cls(FlowStage(config, checkpoint), make_vocoder(config, checkpoint))

    @torch.inference_mode()
    def hop(self, jobs: Sequence[HopJob]) -> list[Outcome]:
        """One flow call and one vocoder call over all jobs; a session occurs once at most."""
        outcomes: dict[int, Outcome] = {}
        try:
            self._open(jobs, outcomes)
            self._speak(jobs, outcomes)
            self._observe([outcomes[index] for index, job in enumerate(jobs) if job.needs_computing])
        except Exception:
            error = self._computing_failed()
            for index in range(len(jobs)):
                outcomes.setdefault(index, error)
        return [outcomes[index] for index in range(len(jobs))]

    @property
    def healthy(self) -> bool:
        """False once calls keep failing: a GPU error, for one, is never forgotten by the process that met it."""
        return self._failures_in_a_row < MAX_FAILURES_IN_A_ROW

    @torch.inference_mode()
    def synthesize(self, job: OfflineJob) -> Outcome:
        """A whole utterance."""
        try:
            mel = self.flow.synthesize(job.token_ids, job.prompt)
            outcome = _checked(self.vocoder.synthesize(mel, job.seed, job.speed))
        except BistreamError as error:
            outcome = error
        except Exception:
            return self._computing_failed()
        self._observe([outcome])
        return outcome

    def _open(self, jobs: Sequence[HopJob], outcomes: dict[int, Outcome]) -> None:
        """Give new sessions their states; a session that is refused has its outcome."""
        for index, job in enumerate(jobs):
            session = job.session
            if session.flow is None:
                try:
                    session.flow = self.flow.open(session.prompt)
                    session.vocoder = self.vocoder.open(session.seed)
                except BistreamError as error:
                    outcomes[index] = error

    def _speak(self, jobs: Sequence[HopJob], outcomes: dict[int, Outcome]) -> None:
        working: list[int] = []
        flow_hops: list[FlowHop] = []
        for index, job in enumerate(jobs):
            if index in outcomes:
                continue
            if not job.needs_computing:
                outcomes[index] = np.zeros(0, np.float32)
                continue
            assert job.session.flow is not None
            working.append(index)
            flow_hops.append(FlowHop(job.session.flow, job.hop.token_ids, job.hop.finalize))
        spoken: list[int] = []
        vocoder_hops: list[VocoderHop] = []
        for index, mel in zip(working, self.flow.hop(flow_hops), strict=True):
            vocoder = jobs[index].session.vocoder
            assert vocoder is not None
            if isinstance(mel, BistreamError):
                outcomes[index] = mel
            else:
                spoken.append(index)
                vocoder_hops.append(VocoderHop(vocoder, mel, jobs[index].hop.finalize))
        for index, waveform in zip(spoken, self.vocoder.hop(vocoder_hops), strict=True):
            outcomes[index] = _checked(waveform)

    def _observe(self, outcomes: Sequence[Outcome]) -> None:
        """The flow keeps its own exceptions (they fail a group, not the call): a batch in which all computing failed counts as one."""
        if any(not isinstance(outcome, BistreamError) for outcome in outcomes):
            self._failures_in_a_row = 0
        elif any(isinstance(outcome, EngineError) and outcome.sentence == FAILED for outcome in outcomes):
            self._failures_in_a_row += 1

    def _computing_failed(self) -> EngineError:
        """Logs the exception being handled; the caller gets one sentence."""
        logger.exception("computing speech failed")
        self._failures_in_a_row += 1
        return EngineError("Computing the speech failed; open a new session and try again.")


def _checked(waveform: FloatArray) -> Outcome:
    if np.isfinite(waveform).all():
        return waveform
    return EngineError("The audio came out as numbers that are not finite; check the voice prompt of this session.")
