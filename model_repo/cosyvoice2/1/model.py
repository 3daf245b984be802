"""Upstream's tensors: the whole text in, audio out. Decoupled, it streams; otherwise one response carries the whole waveform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from bistream.config import RuntimeConfig
from bistream.contract.codec import Inputs
from bistream.contract.fields import COSYVOICE2
from bistream.metrics.recorder import Recorder
from bistream.transport.outbox import Outbox
from bistream.transport.sender import Arrays, CollectingSender, ResponseSender, WaveformSender
from bistream.triton.inputs import upstream_request
from bistream.triton.model import DecoupledModel, UnaryModel
from bistream.triton.status_writer import StatusWriter


class _OwnOrchestrator:
    """Every instance has its own orchestrator; the models of the stages are shared."""

    backend = pb_utils
    contract = COSYVOICE2
    recorder: Recorder
    status: StatusWriter

    def open(self, config: RuntimeConfig) -> None:
        from bistream.sessions.orchestrator import Orchestrator
        from bistream.transport.iterator_keeper import IteratorKeeper
        from bistream.transport.sibling_ports import SiblingModels
        from bistream.triton.front_model import follow_keeper

        self._keeper = IteratorKeeper()
        self._models = SiblingModels(pb_utils, self._keeper)
        self._outbox = Outbox("bistream-send")
        self._orchestrator = Orchestrator(config, self._models.ports, recorder=self.recorder)
        follow_keeper(self.status, self._orchestrator)

    def close(self) -> None:
        self._orchestrator.close()
        self._models.close()
        self._outbox.shutdown()


class _Streaming(_OwnOrchestrator, DecoupledModel):
    def sender(self, triton_sender: Any) -> ResponseSender:
        return ResponseSender(pb_utils, triton_sender, self._keeper)

    def handle(self, inputs: Inputs, sender: ResponseSender) -> None:
        self._orchestrator.handle(upstream_request(inputs, offline=False), WaveformSender(sender, self._outbox))


class _Offline(_OwnOrchestrator, UnaryModel):
    def answer(self, inputs: Inputs, request: Any) -> Arrays:
        sender = CollectingSender(request, self._keeper)
        self._orchestrator.handle(upstream_request(inputs, offline=True), sender)
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
