"""Upstream's tensors: the whole text in, audio out. Decoupled, it streams; otherwise one response carries the whole waveform.

The sessions are those of ``cosyvoice2_bistream``, to which every request is handed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from bistream.config import RuntimeConfig
from bistream.contract.codec import Values
from bistream.contract.fields import CALLED_BISTREAM, ModelContract
from bistream.transport.outbox import Outbox
from bistream.transport.overlap import OverlappingSender
from bistream.transport.sender import CollectingSender, ResponseSender, WaveformSender
from bistream.transport.sibling_ports import open_channel
from bistream.triton.handover import HandOver
from bistream.triton.inputs import TritonInputs, upstream_values
from bistream.triton.model import DecoupledModel, UnaryModel
from bistream.triton.startup import is_decoupled


class _HandingOver:
    def __init__(self, backend: Any, contract: ModelContract) -> None:
        self.backend = backend
        self.contract = contract

    def open(self, config: RuntimeConfig) -> None:
        self._outbox = Outbox("bistream-send")
        self._hand_over = HandOver(open_channel(CALLED_BISTREAM), config.drain_timeout_s)

    def close(self) -> None:
        self._hand_over.close()
        self._outbox.shutdown()


class _Streaming(_HandingOver, DecoupledModel):
    def handle(self, inputs: TritonInputs, sender: ResponseSender) -> None:
        repeated = self.contract.repeated_samples
        chunks = OverlappingSender(sender, self._outbox, repeated) if repeated else WaveformSender(sender, self._outbox)
        self._hand_over.handle(upstream_values(inputs, is_offline=False), chunks)


class _Offline(_HandingOver, UnaryModel):
    def answer(self, inputs: TritonInputs, request: Any) -> Values:
        sender = CollectingSender(request)
        self._hand_over.handle(upstream_values(inputs, is_offline=True), sender)
        return {"waveform": sender.wait()}


class UpstreamModel:
    """``decoupled`` in the model configuration selects one of the two; both accept the same request."""

    backend: ClassVar[Any]  # triton_python_backend_utils
    contract: ClassVar[ModelContract]

    def initialize(self, args: dict[str, str]) -> None:
        kind = _Streaming if is_decoupled(args["model_config"]) else _Offline
        self._model: DecoupledModel | UnaryModel = kind(self.backend, self.contract)
        self._model.initialize(args)

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        return self._model.execute(requests)

    def finalize(self) -> None:
        self._model.finalize()
