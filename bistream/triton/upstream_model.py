"""Upstream's tensors: the whole text in, audio out. Decoupled, it streams; otherwise one response carries the whole waveform.

The sessions are those of ``cosyvoice2_bistream``, to which every request is handed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bistream.config import RuntimeConfig
from bistream.contract.fields import CALLED_BISTREAM
from bistream.transport.outbox import Outbox
from bistream.transport.overlap import OverlappingSender
from bistream.transport.sender import CollectingSender, ResponseSender, WaveformSender, data_response, error_response, public_error
from bistream.transport.sibling_ports import open_channel
from bistream.triton.handover import HandOver
from bistream.triton.inputs import TritonInputs, upstream_values
from bistream.triton.model import DecoupledModel


class UpstreamModel(DecoupledModel):
    """Both take the same request; ``decoupled`` in the model configuration says which it is."""

    def open(self, config: RuntimeConfig) -> None:
        self._outbox = Outbox("bistream-send")
        self._hand_over = HandOver(open_channel(CALLED_BISTREAM), config.drain_timeout_s)

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        return super().execute(requests) if self.decoupled else [self._response(request) for request in requests]

    def handle(self, inputs: TritonInputs, sender: ResponseSender) -> None:
        repeated = self.contract.repeated_samples
        chunks = OverlappingSender(sender, self._outbox, repeated) if repeated else WaveformSender(sender, self._outbox)
        self._hand_over.handle(upstream_values(inputs, is_offline=False), chunks)

    def _response(self, request: Any) -> Any:
        try:
            self.refuse_when_closing()
            sender = CollectingSender(request)
            self._hand_over.handle(upstream_values(TritonInputs(request, self.contract), is_offline=True), sender)
            return data_response(self.backend, self.contract, {"waveform": sender.wait()})
        except Exception as error:
            return error_response(self.backend, public_error(error))

    def close(self) -> None:
        self._hand_over.close()
        self._outbox.shutdown()
