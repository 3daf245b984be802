"""The solver over packed tiles: the launches that a graph records. The arithmetic is that of ``flow_matching.GuidedSolver``."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bistream.token2mel.dit.graphs.network import PackedDit
from bistream.token2mel.flow_matching import GuidedSolver
from bistream.token2mel.pages import GUIDANCE_ROWS


class PackedSolver:
    """The Euler steps over a batch; see ``GuidedSolver.solve``."""

    def __init__(self, matching: GuidedSolver, network: PackedDit) -> None:
        self._matching = matching
        self._network = network

    @torch.no_grad()
    def launch(self, step: int, arrays: Mapping[str, Tensor], conditions: Tensor, mel: Tensor, is_finite: Tensor) -> None:
        """Queue this step of the solver on the current stream; those before it have been computed.

        conditions: [tiles, rows, channels] in the network's dtype. In and out: mel, float32 [tiles, rows, bins], which the first step
        begins with noise; all else that steps have in common is computed anew. Out, with the last step: is_finite, bool [tiles].
        """
        matching = self._matching
        batch = self._network.prepare(arrays)
        x = mel if step else matching.noise[arrays["noise"].long()]
        bins = x.shape[2]
        conditioned = (*x.shape[:2], bins + conditions.shape[2])
        inputs = conditions.new_zeros(GUIDANCE_ROWS * len(x), *conditioned[1:])
        inputs[: len(x), :, bins:] = conditions
        inputs.view(GUIDANCE_ROWS, *conditioned)[..., :bins] = x
        guided, unguided = self._network.velocity(inputs, step, batch).float().chunk(2)
        x = x + matching.step_sizes[step] * ((1.0 + matching.guidance) * guided - matching.guidance * unguided)
        mel.copy_(x)
        if step + 1 == matching.n_steps:
            is_live = torch.arange(x.shape[1], device=x.device) < arrays["live"][:, None]
            is_finite.copy_((torch.isfinite(x).all(dim=2) | ~is_live).all(dim=1))
