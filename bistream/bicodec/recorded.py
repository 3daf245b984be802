"""Calls of the codec in recorded graphs, one for each bucket of rows and tokens.

A call is several hundred launches, which take longer than the work of a few rows. Larger calls are computed launch by launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from bistream.bicodec.network import BiCodec
from bistream.bicodec.signal import Part, SignalParts, WholeSignals
from bistream.gpu.recording import GraphRecorder

WINDOW_TOKENS = (32, 64)  # of a first hop with its lookahead, and of a second one
PUSH_TOKENS = (56, 120, 208)  # of the hops of one, two and four chunks (of 50)
ROWS = (32, 16, 8, 4, 2, 1)
MOST_TOKENS = 1800  # rows x tokens of a call

Result = tuple[Tensor, Tensor | None]  # samples, and what the layers keep


class RecordedCalls:
    """One call at a time: all share their tensors, and results are valid until the next one."""

    def __init__(self, network: BiCodec, state_size: int) -> None:
        device = network.prenet.linear.weight.device
        most = max(*WINDOW_TOKENS, *PUSH_TOKENS)
        self._tokens = torch.zeros(ROWS[0], most, dtype=torch.int64, device=device)
        self._voices = torch.zeros(ROWS[0], network.config.speaker.output_size, device=device)
        self._lengths = torch.zeros(ROWS[0], dtype=torch.int64, device=device)
        self._places = torch.zeros(3, ROWS[0], dtype=torch.int64, device=device)
        self._stored = torch.zeros(ROWS[0], state_size, device=device)
        self._recorder = GraphRecorder(device)
        self._windows = self._record(WINDOW_TOKENS, partial(self._window, network))
        self._pushes = self._record(PUSH_TOKENS, partial(self._push, network))

    def window(self, tokens: Tensor, lengths: Sequence[int], voices: Tensor) -> Tensor | None:
        """tokens int64 [B, N], lengths of its rows, voices [B, C] -> samples [B, samples_per_token x N or more]; None: not recorded."""
        found = self._find(self._windows, tokens)
        if found is None:
            return None
        rows, replay = found
        self._lengths[:rows] = torch.tensor([*lengths, *[0] * (rows - len(lengths))], device=self._lengths.device)
        return self._run(replay, tokens, voices)[0]

    def push(self, tokens: Tensor, parts: Sequence[Part], voices: Tensor, stored: Tensor) -> Result | None:
        """stored: [B, numbers], of the layers -> samples and what the layers keep; None: not recorded."""
        found = self._find(self._pushes, tokens)
        if found is None:
            return None
        rows, replay = found
        self._places[:, :rows] = SignalParts.places([*parts, *[Part(0, 0)] * (rows - len(parts))], self._places.device)
        self._stored[: len(stored)] = stored
        return self._run(replay, tokens, voices)

    def _window(self, network: BiCodec, rows: int, tokens: int) -> Result:
        return network.audio(self._tokens[:rows, :tokens], self._voices[:rows], WholeSignals(self._lengths[:rows])), None

    def _push(self, network: BiCodec, rows: int, tokens: int) -> Result:
        signal = SignalParts(self._stored[:rows], self._places[:, :rows], tokens)
        return network.audio(self._tokens[:rows, :tokens], self._voices[:rows], signal), signal.kept()

    def _record(self, sizes: Sequence[int], launch: Callable[[int, int], Result]) -> dict[tuple[int, int], Callable[[], Result]]:
        recorded = {}
        for tokens in sorted(sizes, reverse=True):
            for rows in ROWS:
                if rows * tokens <= MOST_TOKENS:
                    recorded[tokens, rows] = self._one(partial(launch, rows, tokens))
        return recorded

    def _one(self, launch: Callable[[], Result]) -> Callable[[], Result]:
        self._recorder.warm_up(launch)
        graph, result = self._recorder.capture(launch)

        def replay() -> Result:
            graph.replay()
            return result

        return replay

    def _find(self, recorded: dict[tuple[int, int], Callable[[], Result]], tokens: Tensor) -> tuple[int, Callable[[], Result]] | None:
        """Its rows, and the call."""
        count, size = tokens.shape
        fitting = min((key for key in recorded if key[0] >= size and key[1] >= count), default=None)
        return None if fitting is None else (fitting[1], recorded[fitting])

    def _run(self, replay: Callable[[], Result], tokens: Tensor, voices: Tensor) -> Result:
        count, size = tokens.shape
        self._tokens[:count, :size] = tokens
        self._voices[:count] = voices
        samples, kept = replay()
        return samples[:count], None if kept is None else kept[:count]
