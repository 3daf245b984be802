"""Short windows of tokens in recorded graphs: first hops, whose callers wait. Their 400 launches take a third of the time then."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bistream.bicodec.network import BiCodec
from bistream.bicodec.signal import WholeSignals
from bistream.gpu.recording import GraphRecorder

TOKENS = 32  # of a window, at most: the first hop and its lookahead
ROWS = (32, 16, 8, 4, 2, 1)  # of a call; the largest is recorded first


class RecordedWindows:
    """One call at a time: all share their tensors."""

    def __init__(self, network: BiCodec) -> None:
        device = network.prenet.linear.weight.device
        self._tokens = torch.zeros(ROWS[0], TOKENS, dtype=torch.int64, device=device)
        self._lengths = torch.full((ROWS[0],), TOKENS, device=device)
        self._voices = torch.zeros(ROWS[0], network.config.speaker.output_size, device=device)
        self._calls: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        recorder = GraphRecorder(device)
        for rows in ROWS:

            def launch(rows: int = rows) -> Tensor:
                return network.audio(self._tokens[:rows], self._voices[:rows], WholeSignals(self._lengths[:rows]))

            recorder.warm_up(launch)
            self._calls[rows] = recorder.capture(launch)

    def decode(self, tokens: Tensor, lengths: Sequence[int], voices: Tensor) -> Tensor | None:
        """tokens int64 [B, N], lengths of its rows, voices [B, C] -> samples [B, samples_per_token TOKENS], valid until the next call.

        None: the call is larger than any recorded one.
        """
        count, size = tokens.shape
        if count > ROWS[0] or size > TOKENS:
            return None
        rows = min(one for one in ROWS if one >= count)
        self._tokens[:count, :size] = tokens
        self._voices[:count] = voices
        self._lengths[:rows] = torch.tensor([*lengths, *[0] * (rows - count)], device=self._lengths.device)
        graph, samples = self._calls[rows]
        graph.replay()
        return samples[:count]
