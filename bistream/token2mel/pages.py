"""Device memory of flow state: the tensors that page numbers index, and the memory through which a batch accesses them.

One page is the state of one complete chunk of 25 tokens (50 frames), for every solver step and both guidance rows:

    estimator context   the normalised input of each transformer block       [steps, blocks, 2, page, 50, width]
    estimator tail      the last two input frames of each causal convolution  [steps, 2, page, 2, all convolutions]
    encoder context     keys and values of each layer                         [layers, page, 25 or 50, 2 * width]
    upsampling tail     the last two token frames before upsampling           [page, 2, width]

The context of a network of 16 bit is stored as 8-bit integers (``state_rows``): at full size a second of audio takes 15.9 MB
(14.6 + 0.7 + 0.7), against 115 MB with keys and values of the estimator in 16 bit. ``ZERO_PAGE`` is the zero padding of convolutions and
tables. A page is written as a whole before it is read, so a page that held another session's state needs no clearing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bistream.checkpoints.config import FlowConfig
from bistream.token2mel.estimator import block_count, conv_inputs
from bistream.token2mel.memory import EncoderMemory
from bistream.token2mel.page_pool import FIRST_PAGE, ZERO_PAGE
from bistream.token2mel.paged_memory import PagedMemory, PageTables
from bistream.token2mel.sizes import CONV_HISTORY_FRAMES, UPSAMPLE_HISTORY_TOKENS
from bistream.token2mel.state_rows import StateRows, row_bytes

GUIDANCE_ROWS = 2
HOST_MEMORY_BYTES = 8 * 2**30  # assumed for a desktop; the system commits memory only when a page is first written


class FlowPages:
    """The tensors that page numbers index (``paged_memory.StatePages``).

    total: pages that can be owned.
    """

    conv_history = CONV_HISTORY_FRAMES

    def __init__(self, config: FlowConfig, pages: int, dtype: torch.dtype, device: torch.device) -> None:
        encoder, estimator = config.encoder, config.estimator
        self.chunk_tokens = encoder.static_chunk_size
        self.chunk_frames = estimator.static_chunk_size
        self.token_layers = encoder.num_blocks
        self.total = pages
        steps, rows = config.n_timesteps, FIRST_PAGE + pages
        width = encoder.output_size
        context = (steps, block_count(estimator), GUIDANCE_ROWS, rows, self.chunk_frames, estimator.channels[0])
        self.context = StateRows.empty(context, dtype, device)
        shapes = {
            "tail": (steps, GUIDANCE_ROWS, rows, CONV_HISTORY_FRAMES, sum(conv_inputs(estimator))),
            "token_keys_values": (encoder.num_blocks, rows, self.chunk_tokens, 2 * width),
            "frame_keys_values": (encoder.num_up_blocks, rows, self.chunk_frames, 2 * width),
            "upsample_tail": (rows, UPSAMPLE_HISTORY_TOKENS, width),
        }
        tensors = {name: torch.empty(shape, dtype=dtype, device=device) for name, shape in shapes.items()}
        self.tail = tensors["tail"]
        self.token_keys_values = tensors["token_keys_values"]
        self.frame_keys_values = tensors["frame_keys_values"]
        self.upsample_tail = tensors["upsample_tail"]
        for pages_last in (self.context[:, :, :, ZERO_PAGE], self.tail[:, :, ZERO_PAGE], self.token_keys_values[:, ZERO_PAGE]):
            pages_last.zero_()
        self.frame_keys_values[:, ZERO_PAGE].zero_()
        self.upsample_tail[ZERO_PAGE].zero_()

    def context_of(self, step: int) -> StateRows:
        """As ``StatePages`` says."""
        return self.context[step]

    def tail_of(self, step: int) -> StateRows:
        """As ``StatePages`` says."""
        return StateRows(self.tail[step])

    def memory(self, tables: PageTables) -> UNetMemory:
        return UNetMemory(self, tables)


def page_bytes(config: FlowConfig, dtype: torch.dtype) -> int:
    """Bytes of one page (one second of audio)."""
    encoder, estimator = config.encoder, config.estimator
    chunk_tokens, chunk_frames = encoder.static_chunk_size, estimator.static_chunk_size
    context = block_count(estimator) * chunk_frames * row_bytes(estimator.channels[0], dtype)
    tail = CONV_HISTORY_FRAMES * sum(conv_inputs(estimator))
    keys_values = 2 * encoder.output_size * (encoder.num_blocks * chunk_tokens + encoder.num_up_blocks * chunk_frames)
    upsample = UPSAMPLE_HISTORY_TOKENS * encoder.output_size
    solver = config.n_timesteps * GUIDANCE_ROWS
    return solver * context + (solver * tail + keys_values + upsample) * dtype.itemsize


def memory_bytes(device: torch.device) -> tuple[int, int]:
    """Free and total memory of the device. What a host or its container can spare is unknown: ``HOST_MEMORY_BYTES``, twice."""
    if device.type != "cuda":
        return HOST_MEMORY_BYTES, HOST_MEMORY_BYTES
    free, total = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device), total


class UNetMemory(PagedMemory):
    """``memory.FlowMemory`` on pages."""

    def __init__(self, pages: FlowPages, tables: PageTables) -> None:
        super().__init__(pages, tables)
        self.pages = pages

    def encoder(self) -> EncoderMemory:
        return _PagedEncoderMemory(self)


class _PagedEncoderMemory:
    def __init__(self, memory: UNetMemory) -> None:
        self._memory = memory
        self._layer = 0

    def extend_attention(self, keys_values: Tensor) -> Tensor:
        pages = self._memory.pages
        layer, self._layer = self._layer, self._layer + 1
        if layer < pages.token_layers:
            store = pages.token_keys_values[layer]
        else:
            store = pages.frame_keys_values[layer - pages.token_layers]
        return self._memory.extend(StateRows(store.unsqueeze(0)), keys_values)

    def extend_upsample(self, x: Tensor) -> Tensor:
        memory = self._memory
        store = memory.pages.upsample_tail
        history = store.index_select(0, memory.last)
        if memory.complete_chunks:
            tails = memory.tails(x, memory.pages.chunk_tokens, UPSAMPLE_HISTORY_TOKENS)
            store.index_copy_(0, memory.keep, tails.flatten(0, 1).to(store.dtype))
        return torch.cat([history, x], dim=1)
