"""The U-Net's spans in recorded graphs. Those that no graph can compute run on the plain network from the start of their sequences.

Compiled kernels of the attention depend on the number of pages.
"""

from __future__ import annotations

from collections.abc import Sequence

from bistream.token2mel.batching import Span
from bistream.token2mel.flow import FlowNetwork
from bistream.token2mel.graphs.batch import BatchLayout, BatchSize
from bistream.token2mel.graphs.network import PackedEstimator
from bistream.token2mel.graphs.operations import Operations, compiled_operations, many_compilations, plain_operations
from bistream.token2mel.graphs.recorded import TILES, Call, RecordedFlowRunner
from bistream.token2mel.graphs.weights import pack
from bistream.token2mel.pages import FlowPages
from bistream.token2mel.solving import SpanGroup


class GraphFlowRunner(RecordedFlowRunner):
    """pages: with ``batch.rows_per_page`` rows each, and with scratch pages. tiles: batch sizes, smallest first.

    operations: None compiles them on a GPU and runs them eagerly elsewhere.
    """

    def __init__(
        self,
        network: FlowNetwork,
        pages: FlowPages,
        left_context_chunks: int,
        tiles: Sequence[int] | None = None,
        operations: Operations | None = None,
        interruptible: bool = False,
    ) -> None:
        config, device = network.config, network.device
        rows, width = pages.context_rows.shape[-2:]
        if operations is None:
            operations = plain_operations() if device.type == "cpu" else compiled_operations(device, network.dtype, width)
        packed = PackedEstimator(pack(network.matching.estimator), network.matching.time_biases, pages, operations)
        layout = BatchLayout(pages.chunk_frames, rows, config.token_mel_ratio, left_context_chunks, pages.scratch)
        channels = config.estimator.in_channels - config.output_size
        sizes = [BatchSize(count) for count in tiles or TILES]
        super().__init__(network, pages, left_context_chunks, layout, packed, channels, sizes, interruptible)

    def plainly(self, spans: Sequence[Span]) -> list[tuple[Sequence[int], SpanGroup]]:
        """From the start of their sequences."""
        return self.from_the_start(spans)

    def _launch(self, call: Call, steps: range) -> None:
        with many_compilations():
            super()._launch(call, steps)
