"""Batches of hops in turns, step by step, for the tests of both flows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bistream.token2mel.stage import FlowHop, FlowHops, FlowStage
from bistream.token2mel.state import FlowState
from bistream.types import VoicePrompt


@dataclass
class Speakers:
    """Sessions whose hops make one batch after another. counts: tokens of each session's hop, batch by batch; the last one is final."""

    voices: Sequence[VoicePrompt]
    counts: Sequence[Sequence[int]]
    seed: int
    states: list[FlowState] = field(default_factory=list)
    mels: list[list[Tensor]] = field(default_factory=list)
    batch: FlowHops | None = None

    def step(self, stage: FlowStage) -> bool:
        """The beginning of a batch or one step of it; False when all are done."""
        if self.batch is None:
            if len(self.mels) == len(self.counts):
                return False
            self.states = self.states or [stage.open(voice) for voice in self.voices]
            number = len(self.mels)
            hops = [
                FlowHop(state, self._tokens(stage, count, number, row), number == len(self.counts) - 1)
                for row, (state, count) in enumerate(zip(self.states, self.counts[number], strict=True))
            ]
            self.batch = stage.begin(hops)
        else:
            self.batch.step()
        if not self.batch.steps_left:
            self.mels.append([_mel(result) for result in self.batch.results])
            self.batch = None
        return True

    def _tokens(self, stage: FlowStage, count: int, number: int, row: int) -> list[int]:
        drawn: list[int] = np.random.default_rng([self.seed, number, row]).integers(0, stage.config.vocab_size, count).tolist()
        return drawn

    @property
    def whole(self) -> list[Tensor]:
        """The mel of each session."""
        return [torch.cat([mels[row] for mels in self.mels], dim=1) for row in range(len(self.voices))]


def in_turns(stage: FlowStage, speakers: Sequence[Speakers], steps: Sequence[int]) -> list[list[Tensor]]:
    """steps: how many each of them makes before it is the next one's turn, again and again; 1000: a batch is never interrupted."""
    pending = set(range(len(speakers)))
    for index, count in zip(itertools.cycle(range(len(speakers))), itertools.cycle(steps), strict=False):
        for _ in range(count):
            if not speakers[index].step(stage):
                pending.discard(index)
                break
        if not pending:
            break
    for speaker in speakers:
        for state in speaker.states:
            state.close()
    stage.check_integrity()
    return [speaker.whole for speaker in speakers]


def _mel(result: object) -> Tensor:
    assert isinstance(result, Tensor), result
    return result.float().cpu()
