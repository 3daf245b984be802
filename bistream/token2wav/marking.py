"""The watermark of token2wav: laid over every sample behind the vocoder and the speed, whatever made it and whichever way it leaves.

On the worker's thread, over all waveforms of a batch at once. Importing it loads no torch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bistream.config import RuntimeConfig
from bistream.contract.refusals import marks_nothing
from bistream.errors import BistreamError, EngineError
from bistream.processes.start_phases import phase
from bistream.token2wav.hop_jobs import AudioSession
from bistream.token2wav.renderer import Outcome, RendererSizes
from bistream.types import AudioOptions

if TYPE_CHECKING:
    from bistream.watermark.filter import MarkFilter, MarkState

logger = logging.getLogger(__name__)


class Marking:
    """mark: None where the server marks nothing; then everything stays as it is. marks_all: also what does not ask for it."""

    def __init__(self, mark: MarkFilter | None, marks_all: bool) -> None:
        self._mark = mark
        self._marks_all = marks_all

    @classmethod
    def load(cls, config: RuntimeConfig, sizes: RendererSizes) -> Marking:
        """Raises ``ConfigError`` where the server marks and the package of the watermark is not installed."""
        if config.watermark == "off":
            return cls(None, False)
        with phase("watermark"):
            from bistream.gpu.device import resolve_device  # noqa: PLC0415  (loads torch)
            from bistream.watermark.filter import MarkFilter  # noqa: PLC0415  (loads torch)

            mark = MarkFilter.load(sizes.sample_rate, sizes.samples_per_frame, resolve_device(config.device))
            return cls(mark, config.watermark == "on")

    def check(self, audio: AudioOptions) -> None:
        """Raises ``InvalidInputError`` where what asks for the mark would be without it."""
        if audio.is_marked and self._mark is None:
            raise marks_nothing()

    def hops(self, sessions: Sequence[AudioSession], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The next outcomes of these sessions, every waveform that is to be marked with the mark."""
        if self._mark is None:
            return list(outcomes)
        for session in sessions:
            if session.mark is None and (session.audio.is_marked or self._marks_all):
                session.mark = self._mark.open()
        return _marked(self._mark, [session.mark for session in sessions], outcomes)

    def utterance(self, outcome: Outcome, audio: AudioOptions) -> Outcome:
        """A whole one."""
        if self._mark is None or not (audio.is_marked or self._marks_all):
            return outcome
        return _marked(self._mark, [self._mark.open()], [outcome])[0]


def _marked(mark: MarkFilter, states: Sequence[MarkState | None], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Outcomes without a state stay as they are."""
    heard = [
        (index, state, outcome)
        for index, (state, outcome) in enumerate(zip(states, outcomes, strict=True))
        if state is not None and not isinstance(outcome, BistreamError)
    ]
    marked: Sequence[Outcome]
    try:
        marked = mark.push([state for _, state, _ in heard], [waveform for _, _, waveform in heard])
    except Exception:
        logger.exception("laying the watermark over the speech failed")
        marked = [EngineError("Marking the speech failed; open a new session and try again.") for _ in heard]
    found = list(outcomes)
    for (index, _, _), outcome in zip(heard, marked, strict=True):
        found[index] = outcome
    return found
