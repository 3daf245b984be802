"""Text pieces in, speech tokens out. Glue between Triton and ``bistream.text2token.service``."""

from __future__ import annotations

from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils

from bistream.config import RuntimeConfig
from bistream.errors import BistreamError, UnknownSessionError
from bistream.metrics.families import AUDIO_STAGE
from bistream.rates import SPEECH_TOKENS_PER_SECOND
from bistream.triton.inputs import RequestInputs, language_model_start, require_session_id
from bistream.triton.mailbox import TokenMailbox
from bistream.triton.model import SiblingModel
from bistream.triton.sender import Answerer, ResponseSender, SiblingResponseSender
from bistream.triton.sibling_ports import speech_error_arrays, speech_token_arrays
from bistream.triton.tier_metrics import TierMetrics
from bistream.types import SpeechTokens
from bistream.wire import LLM_BISTREAM


class TritonPythonModel(SiblingModel):
    """One instance: it owns the language model and the state of all sessions, and batches their work."""

    backend = pb_utils
    contract = LLM_BISTREAM

    def open(self, config: RuntimeConfig) -> None:
        from bistream.text2token.service import SpeechTokenService

        self._service = SpeechTokenService(config, recorder=self.recorder)
        self._first_hop_tokens = self.recorder.histogram(AUDIO_STAGE, "first_hop_tokens")
        self._tier_metrics = TierMetrics(pb_utils, self._service.tiers)
        self._mailboxes: dict[str, TokenMailbox] = {}  # used by ``handle`` alone

    def sender(self, triton_sender: Any) -> ResponseSender:
        return SiblingResponseSender(pb_utils, triton_sender, speech_error_arrays)

    def handle(self, inputs: RequestInputs, sender: Answerer) -> None:
        session_id = require_session_id(inputs)
        if inputs.flag("is_cancel", False):
            self._service.cancel(session_id)
            sender.finish()
        elif inputs.flag("is_start", True):
            self._start(session_id, inputs, sender)
        elif inputs.flag("is_pull", False):
            self._pull(session_id, inputs, sender)
        else:
            self._service.append(session_id, inputs.data("text") or b"", inputs.flag("is_end", True))
            sender.finish()

    def _start(self, session_id: str, inputs: RequestInputs, sender: Answerer) -> None:
        start = language_model_start(inputs)
        if not inputs.flag("is_pull", False):

            def sink(message: SpeechTokens | BistreamError) -> None:  # called by the engine's thread
                self.post_answer(sender, partial(_send, sender, message))

            self._service.start(start, sink)
            return
        mailbox = TokenMailbox(on_first_hop=self._first_hop_tokens.observe)
        self._service.start(start, mailbox.post)
        self._drop_old_mailboxes()
        self._mailboxes[session_id] = mailbox
        sender.finish()

    def _pull(self, session_id: str, inputs: RequestInputs, sender: Answerer) -> None:
        mailbox = self._mailboxes.get(session_id)
        if mailbox is None:
            raise UnknownSessionError("No session with this id has tokens to take; start one with is_pull.", session_id)

        def answer(message: SpeechTokens | BistreamError) -> None:
            self.post_answer(sender, partial(_answer, sender, message))

        slack_s, wanted, waiting = inputs.number("slack_s"), inputs.integer("wanted_tokens") or 1, mailbox.num_tokens
        if slack_s is not None:  # the caller does not know of the tokens that wait here
            self._service.demand(session_id, slack_s + waiting / SPEECH_TOKENS_PER_SECOND, wanted - waiting)
        mailbox.take(answer, wanted)

    def _drop_old_mailboxes(self) -> None:
        """Drop drained mailboxes and, beyond max_sessions, the oldest finished ones that were never drained."""
        self._mailboxes = {session_id: mailbox for session_id, mailbox in self._mailboxes.items() if not mailbox.is_drained}
        ended = [session_id for session_id, mailbox in self._mailboxes.items() if mailbox.has_ended]
        for session_id in ended[: max(0, len(ended) - self.config.max_sessions)]:
            del self._mailboxes[session_id]

    def healthy(self) -> bool:
        return self._service.healthy

    def close(self) -> None:
        self._tier_metrics.close()
        self._service.close()
        self.outbox.shutdown()


def _send(sender: Answerer, message: SpeechTokens | BistreamError) -> None:
    if isinstance(message, BistreamError):
        sender.fail(message)
        return
    if message.token_ids or message.is_final:
        sender.send(speech_token_arrays(message))
    if message.is_final:
        sender.finish()


def _answer(sender: Answerer, message: SpeechTokens | BistreamError) -> None:
    if isinstance(message, BistreamError):
        sender.fail(message)
    else:
        sender.send_last(speech_token_arrays(message))
