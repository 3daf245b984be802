"""The DiT's spans in recorded graphs, on the pages of the plain network, which therefore computes what no graph can."""

from __future__ import annotations

from collections.abc import Sequence

from bistream.token2mel.batching import Span
from bistream.token2mel.dit.network import DitFlow
from bistream.token2mel.dit.pages import DitPages
from bistream.token2mel.graphs.batch import BatchSize
from bistream.token2mel.graphs.dit_batch import SlotLayout, batch_sizes
from bistream.token2mel.graphs.dit_network import PackedDit
from bistream.token2mel.graphs.dit_operations import DitOperations, gpu_operations, plain_operations
from bistream.token2mel.graphs.recorded import TILES, RecordedFlowRunner
from bistream.token2mel.solving import SpanGroup


class DitGraphRunner(RecordedFlowRunner):
    """sizes: of batches, see ``RecordedFlowRunner``; None: the usual ones. operations: None: plain on a CPU, kernels on a GPU."""

    def __init__(
        self,
        network: DitFlow,
        pages: DitPages,
        left_context_chunks: int,
        sizes: Sequence[BatchSize] | None = None,
        operations: DitOperations | None = None,
        interruptible: bool = False,
    ) -> None:
        config, device, estimator = network.config, network.device, network.matching.estimator
        sizes = sizes or batch_sizes(TILES, pages.total)
        if operations is None:
            on_cpu = device.type == "cpu"
            operations = plain_operations() if on_cpu else gpu_operations()
        packed = PackedDit(estimator, network.matching.modulations, pages, operations)
        layout = SlotLayout(pages.chunk_frames, pages.chunk_frames, config.token_mel_ratio, left_context_chunks)
        channels = config.dit.mel_dim + config.dit.mu_dim + config.dit.spk_dim
        super().__init__(network, pages, left_context_chunks, layout, packed, channels, sizes, interruptible)

    def plainly(self, spans: Sequence[Span]) -> list[tuple[Sequence[int], SpanGroup]]:
        return self.plain_groups(spans)
