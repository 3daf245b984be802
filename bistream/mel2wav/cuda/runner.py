"""The vocoder stage on a CUDA GPU: state of all sessions in slots, one recorded graph per bucket. Replaces ``VocoderStage``.

Convolutions run in 16 bit with float32 sums; f0, phases, source and Fourier transforms stay in float32, since phases accumulate
over a whole session. Offline synthesis, and calls larger than the largest bucket, run on the plain network.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from bistream.checkpoints.config import CheckpointConfig
from bistream.config import RuntimeConfig
from bistream.gpu.compile_ahead import compile_ahead
from bistream.gpu.device import device_name
from bistream.gpu.recording import GraphRecorder
from bistream.mel2wav.cuda.batch import pack_rows
from bistream.mel2wav.cuda.launches import VocoderCall
from bistream.mel2wav.cuda.memory import Workspace
from bistream.mel2wav.cuda.weights import pack_weights
from bistream.mel2wav.hop_plan import BUCKETS, Bucket, RowPlan
from bistream.mel2wav.slotted import SlottedVocoderStage
from bistream.processes.start_phases import phase

_log = logging.getLogger(__name__)


class CudaVocoderStage(SlottedVocoderStage):
    """``record`` False launches the same kernels one by one (tests)."""

    def __init__(self, config: RuntimeConfig, checkpoint: CheckpointConfig, *, record: bool = True) -> None:
        super().__init__(config, checkpoint)
        self._record = record
        pinned = self.device.type == "cuda"
        self._space = Workspace(self.hift, BUCKETS, torch.float16, self.device)
        self._host_meta = torch.zeros_like(self._space.meta, device="cpu").pin_memory() if pinned else torch.zeros_like(self._space.meta)
        weights = pack_weights(self.hift, torch.float16)
        dependent_launch = torch.cuda.get_device_properties(self.device).major >= 9
        gain = torch.as_tensor(self.noise_gain, dtype=torch.float32, device=self.device)
        self._calls = {
            bucket: VocoderCall(self.hift, weights, self._slots, self._space, bucket, self.fade_in, self.fade_out, gain, dependent_launch)
            for bucket in BUCKETS
        }
        self._graphs: dict[Bucket, torch.cuda.CUDAGraph] = {}
        self._recorder = GraphRecorder(self.device)

    def record(self) -> None:
        """Record the graphs of all buckets: a few seconds, plus the kernels' compilation the first time."""
        began = time.monotonic()
        self._space.meta.zero_()
        if self.device.type == "cuda":
            facts = {"device": device_name(self.device), "sizes": repr(self.hift.config), "buckets": repr(BUCKETS)}
            compile_ahead("vocoder", self._launch_all, facts)
        with phase(f"vocoder: {len(BUCKETS)} graphs"):
            for bucket in BUCKETS:
                self._space.meta.zero_()
                self._record_call(bucket)
        _log.info("vocoder: %d graphs ready after %.1f s", len(self._graphs), time.monotonic() - began)

    @torch.inference_mode()
    def _launch_all(self) -> None:
        for call in self._calls.values():
            call.launch()

    def _compute(self, bucket: Bucket, plans: Sequence[RowPlan], new_mel: Tensor) -> Tensor:
        pack_rows(plans, self._host_meta.numpy(), self._space.rates)
        self._space.meta.copy_(self._host_meta, non_blocking=True)
        self._space.new_mel[:, : new_mel.shape[1]] = new_mel
        assert bucket in self._graphs or not self._record, "call record() first"
        if bucket in self._graphs:
            self._graphs[bucket].replay()
        else:
            self._calls[bucket].launch()
        return self._space.out

    def _record_call(self, bucket: Bucket) -> None:
        """``meta`` on the device must hold padding rows only."""
        with torch.inference_mode():
            self._graphs[bucket] = self._recorder.record(self._calls[bucket].launch)
