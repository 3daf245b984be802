"""The vocoder stage of the middle tier: state of all sessions in slots, one recorded graph of library code per bucket.

It serves every CUDA GPU and every network size: convolutions are cuDNN's, the operations between them are compiled by ``torch.compile``.
Its only 16-bit type is float16 (bfloat16 is about 18 dB coarser), so a GPU without bfloat16 (compute capability 7.5) should suffice, but
this was never tried.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bistream.checkpoints.config import CheckpointConfig
from bistream.config import RuntimeConfig
from bistream.gpu.recording import GraphRecorder
from bistream.mel2wav.graphs.call import Buffers, Parts, VocoderCall
from bistream.mel2wav.graphs.decoder import Decoder, DecoderLayout
from bistream.mel2wav.graphs.functions import Functions
from bistream.mel2wav.graphs.meta import pack_rows
from bistream.mel2wav.hop_plan import BUCKETS, Bucket, RowPlan
from bistream.mel2wav.slotted import SlottedVocoderStage

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GraphOptions:
    """How the network is computed.

    channels_last: memory layout of activations. static_widths: compile the functions between convolutions for each number of channels.
    benchmark: let cuDNN time its algorithms for every shape while graphs are recorded. backend: of ``torch.compile``; None: do not
    compile.
    """

    channels_last: bool = True
    static_widths: bool = True
    benchmark: bool = False
    backend: str | Callable[..., Any] | None = "inductor"


class GraphVocoderStage(SlottedVocoderStage):
    """``record`` False runs the same call without a graph (tests; the CPU). dtype: of the decoder's convolutions."""

    def __init__(
        self, config: RuntimeConfig, checkpoint: CheckpointConfig, *, dtype: torch.dtype = torch.float16, record: bool = True,
        options: GraphOptions | None = None,
    ) -> None:  # fmt: skip
        super().__init__(config, checkpoint)
        options = options or GraphOptions()
        rows, frames = max(bucket.rows for bucket in BUCKETS), max(bucket.rows * bucket.frames for bucket in BUCKETS)
        layout = DecoderLayout(options.channels_last)
        functions = Functions(options.backend, layout.channels_dim if options.static_widths else None)
        self._record = record
        self._buffers = Buffers(rows, frames, checkpoint.vocoder.in_channels, self.device)
        self._host_meta = torch.zeros_like(self._buffers.meta, device="cpu")
        if self.device.type == "cuda":
            self._host_meta = self._host_meta.pin_memory()
        parts = Parts(
            hift=self.hift,
            decoder=Decoder(self.hift, dtype, layout, functions),
            functions=functions,
            slots=self._slots,
            buffers=self._buffers,
            fades=torch.stack([self.fade_in, self.fade_out]),
            noise_gain=torch.as_tensor(self.noise_gain, dtype=torch.float32, device=self.device),
            benchmark=options.benchmark,
        )
        self._calls = {bucket: VocoderCall(parts, bucket) for bucket in BUCKETS}
        self._graphs: dict[Bucket, torch.cuda.CUDAGraph] = {}

    def record(self) -> None:
        """Record the graphs of all buckets; the first time on a machine, most of the time is compilation."""
        began = time.monotonic()
        recorder = GraphRecorder(self.device)
        self._buffers.meta.zero_()  # padding rows only
        # Largest first: the compiler tunes for the first sizes that it sees, and the others fit into the memory of the first graph.
        for bucket in sorted(BUCKETS, key=lambda bucket: (bucket.rows * bucket.frames, bucket.rows), reverse=True):
            self._graphs[bucket] = recorder.record(self._calls[bucket].launch)
            _log.debug("vocoder: graph of %d x %d frames ready after %.1f s", bucket.rows, bucket.frames, time.monotonic() - began)
        _log.info("vocoder: %d graphs ready after %.1f s", len(self._graphs), time.monotonic() - began)

    def _compute(self, bucket: Bucket, plans: Sequence[RowPlan], new_mel: Tensor) -> Tensor:
        pack_rows(plans, self._host_meta.numpy())
        self._buffers.meta.copy_(self._host_meta, non_blocking=True)
        self._buffers.new_mel[: new_mel.shape[1]] = new_mel.T
        assert bucket in self._graphs or not self._record, "call record() first"
        if bucket in self._graphs:
            self._graphs[bucket].replay()
        else:
            self._calls[bucket].launch()
        return self._buffers.out.view(-1)
