"""Text pieces in, speech tokens out. Glue between Triton and ``bistream.text2token.service``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import triton_python_backend_utils as pb_utils

from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.triton.bls_ports import speech_error_arrays, speech_token_arrays
from bistream.triton.inputs import RequestInputs, language_model_start, require_session_id
from bistream.triton.model import DecoupledModel
from bistream.triton.sender import ResponseSender, SiblingResponseSender
from bistream.types import SpeechTokens
from bistream.wire import LLM_BISTREAM


class TritonPythonModel(DecoupledModel):
    """One instance: it owns the language model and the state of all sessions, and batches their work."""

    backend = pb_utils
    contract = LLM_BISTREAM

    def open(self, config: RuntimeConfig) -> None:
        from bistream.text2token.service import SpeechTokenService

        self._service = SpeechTokenService(config)
        # Responses are sent, in order, by a thread of their own: a send waits for the server, the engine must not.
        self._outbox = ThreadPoolExecutor(max_workers=1, thread_name_prefix="llm-send")

    def sender(self, triton_sender: Any) -> ResponseSender:
        return SiblingResponseSender(pb_utils, triton_sender, speech_error_arrays)

    def handle(self, inputs: RequestInputs, sender: ResponseSender) -> None:
        session_id = require_session_id(inputs)
        if inputs.flag("is_cancel", False):
            self._service.cancel(session_id)
            sender.finish()
        elif inputs.flag("is_start", True):
            self._service.start(language_model_start(inputs), lambda message: self._post(sender, message))
        else:
            self._service.append(session_id, inputs.data("text") or b"", inputs.flag("is_end", True))
            sender.finish()

    def _post(self, sender: ResponseSender, message: SpeechTokens | BistreamError) -> None:
        """Called by the engine's thread."""
        self._outbox.submit(_send, sender, message)

    def healthy(self) -> bool:
        return self._service.healthy

    def close(self) -> None:
        self._service.close()
        self._outbox.shutdown()


def _send(sender: ResponseSender, message: SpeechTokens | BistreamError) -> None:
    if isinstance(message, BistreamError):
        sender.fail(message)
        return
    sender.send(speech_token_arrays(message))
    if message.is_final:
        sender.finish()
