"""The watermark of token2wav: laid over every sample behind the vocoder and the speed, whatever made it and whichever way it leaves.

On the worker's thread, over all waveforms of a batch at once. Importing it loads no torch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bistream.config import RuntimeConfig
from bistream.errors import BistreamError, EngineError
from bistream.processes.start_phases import phase
from bistream.token2wav.hop_jobs import AudioSession
from bistream.token2wav.renderer import Outcome, RendererSizes

if TYPE_CHECKING:
    from bistream.watermark.filter import MarkFilter, MarkState

logger = logging.getLogger(__name__)


class Marking:
    """mark: None where the server marks nothing; then everything stays as it is."""

    def __init__(self, mark: MarkFilter | None) -> None:
        self._mark = mark

    @classmethod
    def load(cls, config: RuntimeConfig, sizes: RendererSizes) -> Marking:
        """Raises ``ConfigError`` where the watermark is on and its package is not installed."""
        if config.watermark == "off":
            return cls(None)
        with phase("watermark"):
            from bistream.gpu.device import resolve_device  # noqa: PLC0415  (loads torch)
            from bistream.watermark.filter import MarkFilter  # noqa: PLC0415  (loads torch)

            return cls(MarkFilter.load(sizes.sample_rate, sizes.samples_per_frame, resolve_device(config.device)))

    def hops(self, sessions: Sequence[AudioSession], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The next outcomes of these sessions, every waveform with the mark."""
        if self._mark is None:
            return list(outcomes)
        marks = [session.mark or self._mark.open() for session in sessions]
        for session, mark in zip(sessions, marks, strict=True):
            session.mark = mark
        return _marked(self._mark, marks, outcomes)

    def utterance(self, outcome: Outcome) -> Outcome:
        """A whole one."""
        return outcome if self._mark is None else _marked(self._mark, [self._mark.open()], [outcome])[0]


def _marked(mark: MarkFilter, states: Sequence[MarkState], outcomes: Sequence[Outcome]) -> list[Outcome]:
    heard = [(index, outcome) for index, outcome in enumerate(outcomes) if not isinstance(outcome, BistreamError)]
    marked: Sequence[Outcome]
    try:
        marked = mark.push([states[index] for index, _ in heard], [waveform for _, waveform in heard])
    except Exception:
        logger.exception("laying the watermark over the speech failed")
        marked = [EngineError("Marking the speech failed; open a new session and try again.") for _ in heard]
    found = list(outcomes)
    for (index, _), outcome in zip(heard, marked, strict=True):
        found[index] = outcome
    return found
