"""Upstream's tensors: the whole text in, audio out. Decoupled, it streams; otherwise one response carries the whole waveform.

The sessions are those of ``cosyvoice2_bistream``, to which every request is handed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from bistream.config import RuntimeConfig
from bistream.contract.fields import CALLED_BISTREAM, COSYVOICE2
from bistream.transport.outbox import Outbox
from bistream.transport.sender import Arrays, CollectingSender, ResponseSender, WaveformSender
from bistream.triton.inputs import TritonInputs, upstream_arrays
from bistream.triton.model import DecoupledModel, UnaryModel


class _HandingOver:
    backend = pb_utils
    contract = COSYVOICE2

    def open(self, config: RuntimeConfig) -> None:
        from bistream.transport.bls_client import BlsClient
        from bistream.transport.channel import open_channel
        from bistream.transport.iterator_keeper import IteratorKeeper
        from bistream.triton.handover import HandOver

        self._keeper = IteratorKeeper()
        self._outbox = Outbox("bistream-send")
        self._hand_over = HandOver(open_channel(BlsClient(pb_utils, self._keeper), CALLED_BISTREAM), config.drain_timeout_s)

    def close(self) -> None:
        self._hand_over.close()
        self._outbox.shutdown()


class _Streaming(_HandingOver, DecoupledModel):
    def sender(self, triton_sender: Any, inputs: TritonInputs) -> ResponseSender:
        return ResponseSender(pb_utils, triton_sender, self._keeper)

    def handle(self, inputs: TritonInputs, sender: ResponseSender) -> None:
        self._hand_over.handle(upstream_arrays(inputs, is_offline=False), WaveformSender(sender, self._outbox))


class _Offline(_HandingOver, UnaryModel):
    def answer(self, inputs: TritonInputs, request: Any) -> Arrays:
        sender = CollectingSender(request, self._keeper)
        self._hand_over.handle(upstream_arrays(inputs, is_offline=True), sender)
        return {"waveform": sender.wait()}


class TritonPythonModel:
    """``decoupled`` in the model configuration selects one of the two; both accept the same request."""

    def initialize(self, args: dict[str, str]) -> None:
        from bistream.triton.startup import is_decoupled

        self._model: DecoupledModel | UnaryModel = _Streaming() if is_decoupled(args["model_config"]) else _Offline()
        self._model.initialize(args)

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        return self._model.execute(requests)

    def finalize(self) -> None:
        self._model.finalize()
