"""Streaming in both directions: text pieces in, audio chunks out. Glue between Triton and ``bistream.sessions.orchestrator``."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

from bistream.config import RuntimeConfig
from bistream.contract.codec import Inputs
from bistream.contract.fields import CALLED_BISTREAM
from bistream.transport.outbox import Outbox
from bistream.transport.sender import Answerer, BistreamAudioSender, CallAudioSender, ResponseSender
from bistream.triton.inputs import bistream_request
from bistream.triton.model import SiblingModel


class TritonPythonModel(SiblingModel):
    """One instance: it owns the table of sessions, those of ``cosyvoice2`` included, which calls it."""

    backend = pb_utils
    contract = CALLED_BISTREAM

    def open(self, config: RuntimeConfig) -> None:
        from bistream.sessions.orchestrator import Orchestrator
        from bistream.transport.sibling_ports import SiblingModels
        from bistream.triton.front_model import follow_keeper
        from bistream.triton.voice_lists import VoiceLists

        self._models = SiblingModels(pb_utils)
        self._to_clients = Outbox("bistream-send")
        self._orchestrator = Orchestrator(config, self._models.ports, recorder=self.recorder)
        self._voice_lists = VoiceLists(self._orchestrator.listed_voices)
        follow_keeper(self.status, self._orchestrator)

    def handle(self, inputs: Inputs, sender: Answerer) -> None:
        if inputs.value("is_voice_list"):
            self._voice_lists.answer(sender)
        else:
            self._orchestrator.handle(
                bistream_request(inputs),
                BistreamAudioSender(sender, self._to_clients) if isinstance(sender, ResponseSender) else CallAudioSender(sender),
            )

    def close(self) -> None:
        self._voice_lists.close()
        self._orchestrator.close()
        self._models.close()
        self._to_clients.shutdown()
        self.outbox.shutdown()
