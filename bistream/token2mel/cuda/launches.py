"""One call of the flow for one bucket: encoder, conditions, noise and all solver steps. Graphs record this, in one or more parts.

In: the batch's arrays, prompt mel and speakers on the device. Out: ``buffers.mel`` float32 [frames, bins] and ``is_finite``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bistream.token2mel.cuda import kernels_euler_step
from bistream.token2mel.cuda.batch import BatchArrays, Bucket
from bistream.token2mel.cuda.launches_encoder import CudaEncoder
from bistream.token2mel.cuda.launches_few import FewEstimator
from bistream.token2mel.cuda.launches_many import ManyEstimator
from bistream.token2mel.cuda.memory import FlowBuffers
from bistream.token2mel.cuda.tuning import Tuning
from bistream.token2mel.cuda.weights import EncoderWeights
from bistream.token2mel.flow import FlowNetwork
from bistream.token2mel.pages import GUIDANCE_ROWS, FlowPages

_STEP_ROWS = 16


class CudaSolver:
    """prompt_mel: float32 [frames, bins], zero after a prompt. speakers: float32 [sessions, speaker size]."""

    def __init__(
        self,
        network: FlowNetwork,
        weights: EncoderWeights,
        pages: FlowPages,
        buffers: FlowBuffers,
        arrays: BatchArrays[Tensor],
        prompt_mel: Tensor,
        speakers: Tensor,
        bucket: Bucket,
        tuning: Tuning,
        left_context_chunks: int,
        free_velocities: Tensor,
    ) -> None:
        """free_velocities: see ``first_step``."""
        config = network.config
        self.network = network
        self.buffers = buffers
        self.arrays = arrays
        self.prompt_mel = prompt_mel
        self.speakers = speakers
        self.free_velocities = free_velocities
        self.frames = bucket.tokens * config.token_mel_ratio
        self.encoder = CudaEncoder(config, network, weights, pages, buffers, arrays, bucket, tuning, left_context_chunks)
        sizes, estimator = config.estimator, network.matching.estimator
        self.estimator: FewEstimator | ManyEstimator
        if tuning.few is not None:
            self.estimator = FewEstimator(sizes, estimator, pages, buffers, arrays, tuning.few, left_context_chunks)
        else:
            self.estimator = ManyEstimator(sizes, estimator, pages, buffers, arrays, bucket, tuning, left_context_chunks)
        self.is_finite = torch.zeros(self.frames, dtype=torch.bool, device=network.device)

    def launch(self, step: int) -> None:
        """Queue this step of the solver on the current stream, the first with all that comes before it; those before have been computed.

        Between two steps a call's state is ``state()`` and its pages; everything else is written before it is read.
        """
        matching = self.network.matching
        is_known = step == 0
        if is_known:
            self._begin(self.encoder.launch())
        self.estimator.launch(step, matching.time_biases[step], halves=1 if is_known else GUIDANCE_ROWS)
        self._finish_step(matching.step_sizes[step], is_known)
        if step + 1 == matching.n_steps:
            self.is_finite.copy_(torch.isfinite(self.buffers.mel[: self.frames]).all(dim=1))

    def state(self) -> tuple[Tensor, Tensor]:
        """The mel, and the estimator's inputs of both halves, of this bucket."""
        return self.buffers.mel[: self.frames], self.buffers.inputs[: GUIDANCE_ROWS * self.frames]

    def _begin(self, mu: Tensor) -> None:
        """Noise and conditions of both guidance halves (the second has no conditions)."""
        network, frames, bins = self.network, self.frames, self.network.config.output_size
        speakers = network.speaker_projection(F.normalize(self.speakers, dim=1).to(network.dtype))
        noise = network.matching.noise[self.arrays.frame_noise]
        inputs = self.buffers.inputs
        self.buffers.mel[:frames] = noise
        inputs[:frames, :bins] = noise
        inputs[frames : 2 * frames, :bins] = noise
        inputs[:frames, bins : 2 * bins] = mu
        inputs[:frames, 2 * bins : 3 * bins] = speakers[self.arrays.frame_session]
        inputs[:frames, 3 * bins :] = self.prompt_mel[:frames]
        inputs[frames : 2 * frames, bins:] = 0.0

    def _finish_step(self, size: float, is_known: bool) -> None:
        """is_known: take the unconditioned velocities from ``first_step``."""
        matching, buffers = self.network.matching, self.buffers
        estimator = matching.estimator
        norm, projection = estimator.final_block.norm, estimator.final_projection
        bins, width = projection.weight.shape[0], projection.weight.shape[2]
        kernels_euler_step.finish_step[(self.frames // _STEP_ROWS,)](
            buffers.raw, norm.weight, norm.bias, projection.weight, projection.bias, self.arrays.frames.live, buffers.mel,
            buffers.inputs, self.free_velocities, self.arrays.frame_free, size, matching.guidance,
            rows=self.frames, WIDTH=width, BINS=bins, FEATURES=1 << (bins - 1).bit_length(), INPUTS=buffers.inputs.shape[1],
            TILE=_STEP_ROWS, KNOWN=is_known, EPS=norm.eps, num_warps=4,
        )  # fmt: skip
