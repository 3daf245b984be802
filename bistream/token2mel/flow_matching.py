"""The solver: noise and conditions in, mel out, by Euler steps along the estimator's velocity with classifier-free guidance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bistream.checkpoints.config import FlowConfig
from bistream.gpu.steps import Steps, finish
from bistream.token2mel.checks import MAX_FRAMES
from bistream.token2mel.estimator import Estimator
from bistream.token2mel.memory import SolverMemory, StepMemory

_NOISE_SEED = 0


def noise_buffer(mel_bins: int) -> Tensor:
    """The solver's fixed initial noise, float32 [mel_bins, MAX_FRAMES], indexed by absolute frame (prompt included).

    The reference draws [1, 80, 15000] standard normal numbers on the CPU after seeding with 0; a separate generator
    gives the same numbers and leaves the global one alone.
    """
    return torch.randn([1, mel_bins, MAX_FRAMES], generator=torch.Generator().manual_seed(_NOISE_SEED))[0]


def time_steps(count: int) -> tuple[list[float], list[float]]:
    """Times and step sizes of the cosine schedule 1 - cos(pi / 2 * k / count), accumulated in float32 as in the reference."""
    grid = 1 - torch.cos(torch.linspace(0, 1, count + 1) * 0.5 * math.pi)
    times, sizes = [], []
    now = grid[0]
    for following in grid[1:]:
        size = following - now
        times.append(float(now))
        sizes.append(float(size))
        now = now + size
    return times, sizes


@dataclass
class SolverState:
    """A batch between two solver steps.

    x: float32 [S, T, bins], the mel so far. conditions: [2 * S, T, channels] and bias: [2 * S, 1, T, K], of both guidance halves.
    first_frames: int64 [S], absolute frame of each row's first new frame.
    memory: what the batch stored and will store; a step reads and writes the state of that step alone. step: how many are done.
    """

    x: Tensor
    conditions: Tensor
    bias: Tensor | None
    first_frames: Tensor
    memory: SolverMemory
    step: int = 0


class GuidedSolver(nn.Module):
    """The solver without its estimator: a subclass evaluates one in ``velocity``."""

    noise: Tensor

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.guidance = config.inference_cfg_rate
        self.n_steps = config.n_timesteps
        self.step_sizes: list[float] = []
        self.register_buffer("noise", torch.empty(0), persistent=False)

    def prepare_steps(self, mel_bins: int, device: torch.device) -> Tensor:
        """Compute noise and step sizes. Returns the times of the steps, float32 [steps], for the estimator."""
        times, self.step_sizes = time_steps(self.n_steps)
        self.noise = noise_buffer(mel_bins).T.contiguous().to(device)  # [frames, bins]
        return torch.tensor(times, device=device)

    def velocity(self, inputs: Tensor, state: SolverState, memory: StepMemory, max_scores: int | None) -> Steps[Tensor]:
        """The estimator's velocity [2 * S, T, bins] at ``state.step`` for inputs [2 * S, T, channels]: the mel, then its conditions."""
        raise NotImplementedError

    def solve(self, first_frames: Tensor, conditions: Tensor, bias: Tensor, memory: SolverMemory) -> Tensor:
        """Solve the new frames of S rows.

        first_frames: int64 [S], absolute frame of each row's first new frame.
        conditions: [S, T, channels], see ``flow.FlowNetwork.conditions``. bias: [S, 1, T, K]. Returns float32 [S, T, bins].

        The estimator sees 2 S rows: all rows with their conditions, then all rows with zeros in their place.
        """
        return finish(self.steps(first_frames, conditions, bias, memory))

    def steps(
        self, first_frames: Tensor, conditions: Tensor, bias: Tensor | None, memory: SolverMemory, max_scores: int | None = None
    ) -> Steps[Tensor]:
        """``solve`` with the estimator's pauses. bias None: every frame sees all others."""
        state = self.begin(first_frames, conditions, bias, memory)
        while state.step < self.n_steps:
            yield from self.advance(state, max_scores)
        return state.x

    def begin(self, first_frames: Tensor, conditions: Tensor, bias: Tensor | None, memory: SolverMemory) -> SolverState:
        """The state before the first step; arguments as in ``solve``."""
        index = first_frames[:, None] + torch.arange(conditions.shape[1], device=conditions.device)
        x = self.noise[index.clamp_(max=MAX_FRAMES - 1)]  # frames past the buffer are padding
        conditions = torch.cat([conditions, torch.zeros_like(conditions)])
        return SolverState(x, conditions, None if bias is None else bias.repeat(2, 1, 1, 1), first_frames, memory)

    def advance(self, state: SolverState, max_scores: int | None = None) -> Steps[None]:
        """One Euler step."""
        step, dtype = state.step, state.conditions.dtype
        inputs = torch.cat([state.x.to(dtype).repeat(2, 1, 1), state.conditions], dim=-1)
        velocity = yield from self.velocity(inputs, state, state.memory.step(step), max_scores)
        guided, free = velocity.float().chunk(2)
        state.x = state.x + self.step_sizes[step] * ((1.0 + self.guidance) * guided - self.guidance * free)
        state.step = step + 1


class FlowMatching(GuidedSolver):
    """The solver with the U-Net."""

    time_biases: Tensor

    def __init__(self, config: FlowConfig) -> None:
        super().__init__(config)
        self.estimator = Estimator(config.estimator)
        self.register_buffer("time_biases", torch.empty(0), persistent=False)

    def prepare(self, mel_bins: int) -> None:
        """Compute noise and time biases; call once after loading the weights."""
        times = self.prepare_steps(mel_bins, self.estimator.time_linear1.weight.device)
        self.time_biases = self.estimator.time_biases(times)  # [steps, units, width]

    def velocity(self, inputs: Tensor, state: SolverState, memory: StepMemory, max_scores: int | None) -> Steps[Tensor]:
        biases = self.time_biases[state.step : state.step + 1]
        return (yield from self.estimator.steps(inputs, biases, state.bias, memory, max_scores))
