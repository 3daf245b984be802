"""The solver: noise and conditions in, mel out, by Euler steps along the estimator's velocity with classifier-free guidance."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bistream.config import FlowConfig
from bistream.token2mel.checks import MAX_FRAMES
from bistream.token2mel.estimator import Estimator
from bistream.token2mel.memory import FlowMemory

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


class FlowMatching(nn.Module):
    noise: Tensor
    time_biases: Tensor

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.estimator = Estimator(config.estimator)
        self.guidance = config.inference_cfg_rate
        self.steps = config.n_timesteps
        self.step_sizes: list[float] = []
        self.register_buffer("noise", torch.empty(0), persistent=False)
        self.register_buffer("time_biases", torch.empty(0), persistent=False)

    def prepare(self, mel_bins: int) -> None:
        """Compute noise and time biases; call once after loading the weights."""
        weight = self.estimator.time_linear1.weight
        times, self.step_sizes = time_steps(self.steps)
        self.noise = noise_buffer(mel_bins).T.contiguous().to(weight.device)  # [frames, bins]
        self.time_biases = self.estimator.time_biases(torch.tensor(times, device=weight.device))  # [steps, units, width]

    def solve(self, first_frames: Tensor, conditions: Tensor, bias: Tensor, memory: FlowMemory) -> Tensor:
        """Solve the new frames of S rows.

        first_frames: int64 [S], absolute frame of each row's first new frame.
        conditions: [S, T, channels], see ``flow.FlowNetwork.conditions``. bias: [S, 1, T, K]. Returns float32 [S, T, bins].

        The estimator sees 2 S rows: all rows with their conditions, then all rows with zeros in their place.
        """
        frames, dtype = conditions.shape[1], conditions.dtype
        index = first_frames[:, None] + torch.arange(frames, device=conditions.device)
        x = self.noise[index.clamp_(max=MAX_FRAMES - 1)]  # frames past the buffer are padding
        conditions = torch.cat([conditions, torch.zeros_like(conditions)])
        bias = bias.repeat(2, 1, 1, 1)
        for step, size in enumerate(self.step_sizes):
            inputs = torch.cat([x.to(dtype).repeat(2, 1, 1), conditions], dim=-1)
            velocity = self.estimator(inputs, self.time_biases[step : step + 1], bias, memory.step(step))
            guided, free = velocity.float().chunk(2)
            x = x + size * ((1.0 + self.guidance) * guided - self.guidance * free)
        return x
