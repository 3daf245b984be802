"""A stream of audio as chunks for a client that cross-fades them, which hears that audio unchanged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bistream.errors import BistreamError
from bistream.transport.outbox import Outbox
from bistream.transport.sender import ResponseSender, WaveformSender
from bistream.types import AudioChunk, FloatArray

_NOTHING: FloatArray = np.zeros(0, np.float32)


class OverlappingChunks:
    """Every chunk begins with the last ``overlap`` samples of the one before.

    The client lays the beginning of a chunk, faded in, over the end of the one before, faded out (SparkAudio/Spark-TTS,
    runtime/triton_trtllm/client_grpc.py, ``run_sync_streaming_inference``). Both are the same samples here and the weights sum to 1: the
    fade leaves no trace. It needs ``overlap`` samples of every chunk, and of a later one as many new ones besides, or else plays some of
    them twice. The next piece may be the last and as short as can be, so ``overlap`` samples wait until it is there.
    """

    def __init__(self, overlap: int) -> None:
        """overlap: 1 or more."""
        self._overlap = overlap
        self._repeated = _NOTHING
        self._waiting = _NOTHING

    def push(self, audio: FloatArray) -> FloatArray:
        """The chunk that can be sent after this further piece, float32 [N] both; empty: none yet."""
        self._waiting = np.concatenate([self._waiting, audio])
        new = self._waiting.size - self._overlap
        return self._chunk(new) if new >= self._overlap else _NOTHING

    def end(self) -> FloatArray:
        """The last chunk, float32 [N]; empty where there was no audio."""
        return self._chunk(self._waiting.size) if self._waiting.size else _NOTHING

    def _chunk(self, new: int) -> FloatArray:
        chunk: FloatArray = np.concatenate([self._repeated, self._waiting[:new]])
        self._repeated, self._waiting = chunk[-self._overlap :], self._waiting[new:]
        return chunk


class OverlappingSender(WaveformSender):
    """``WaveformSender`` for a client that cross-fades (``OverlappingChunks``)."""

    def __init__(self, sender: ResponseSender, outbox: Outbox, overlap: int) -> None:
        super().__init__(sender, outbox)
        self._chunks = OverlappingChunks(overlap)

    async def send(self, chunk: AudioChunk) -> None:
        if (waveform := self._chunks.push(chunk.waveform)).size:
            await super().send(replace(chunk, waveform=waveform))

    def finish(self, error: BistreamError | None) -> None:
        """The last chunk goes before the end, not with it: these clients look for no audio in a final response."""
        if error is None and (waveform := self._chunks.end()).size:
            self._outbox.submit(self._sender.send, {"waveform": waveform})
        super().finish(error)
