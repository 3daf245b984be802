"""Work that may run beside what is queued after it, on a stream of its own; recorded graphs get a branch of it. Nothing on a CPU."""

from __future__ import annotations

import torch


class SideStream:
    """``with`` queues work beside the current stream's; ``join`` has the current stream wait for it.

    What is allocated inside is freed for later work of this stream only, which begins after what the current stream has queued until then.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._entered: torch.cuda.StreamContext | None = None

    def __enter__(self) -> None:
        if self._device.type != "cuda":
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._entered = torch.cuda.stream(self._stream)
        self._entered.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exception: object) -> None:
        if self._entered is not None:
            self._entered.__exit__(*exception)
            self._entered = None

    def join(self) -> None:
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
