"""Text pieces in, speech tokens out. Glue between Triton and ``bistream.text2token.service``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import triton_python_backend_utils as pb_utils

from bistream.config import RuntimeConfig
from bistream.contract.codec import Inputs
from bistream.contract.fields import LLM_BISTREAM
from bistream.errors import BistreamError, UnknownSessionError
from bistream.metrics.catalogue import AUDIO_STAGE, TIER
from bistream.text.effort import takes_long
from bistream.text.preparation import chosen_normalization
from bistream.text2token.one_table.prompts import Labels, SpeakerTokens
from bistream.text2token.service import LanguageModelStart
from bistream.transport.sender import Answerer, public_error
from bistream.transport.sibling_ports import speech_token_values
from bistream.triton.mailbox import TokenMailbox
from bistream.triton.model import SiblingModel
from bistream.triton.ordered_work import OrderedWork
from bistream.types import SpeechTokens

TEXT_THREADS = 4  # that many sessions with slow texts do not wait for each other


class TritonPythonModel(SiblingModel):
    """One instance: it owns the language model and the state of all sessions, and batches their work."""

    backend = pb_utils
    contract = LLM_BISTREAM

    def open(self, config: RuntimeConfig) -> None:
        from bistream.text2token.service import SpeechTokenService

        self._service = SpeechTokenService(config, recorder=self.recorder)
        self._first_hop_tokens = self.recorder.histogram(AUDIO_STAGE, "first_hop_tokens")
        self.recorder.read(TIER, lambda: {choice.labels: 1.0 for choice in self._service.tiers})
        self._mailboxes: dict[str, TokenMailbox] = {}  # with ``handling`` held
        self._slow_texts = OrderedWork(TEXT_THREADS, "llm_bistream-text")

    def handle(self, inputs: Inputs, sender: Answerer) -> None:
        if inputs.value("gender") is not None:
            self._make_voice(inputs, sender)
            return
        session_id = inputs.required("session_id")
        if inputs.value("is_cancel"):
            self._in_order(session_id, partial(self._cancel, session_id, sender), sender)
        elif inputs.value("is_start"):
            start, is_pulled = inputs.read(LanguageModelStart), inputs.value("is_pull")
            work = partial(self._start_pulled if is_pulled else self._start, start, sender)
            mode = chosen_normalization(start.options.text_normalization, self.config.text_normalization)
            is_slow = takes_long(start.text, mode) or takes_long(start.prompt_text.encode(), mode)
            self._in_order(session_id, work, sender, is_slow)
        elif inputs.value("is_pull"):
            pull = partial(self._pull, session_id, inputs, sender)
            if session_id in self._mailboxes:
                pull()
            else:
                self._in_order(session_id, pull, sender)
        else:
            text, is_end = inputs.value("text"), inputs.value("is_end")
            self._in_order(session_id, partial(self._append, session_id, text, is_end, sender), sender, takes_long(text))

    def _in_order(self, session_id: str, work: Callable[[], None], sender: Answerer, is_slow: bool = False) -> None:
        """Now; or, where it takes long or comes after what does, on another thread: no other session waits for it then."""
        if not is_slow and not self._slow_texts.is_busy(session_id):
            work()
            return

        def answered() -> None:
            try:
                work()
            except Exception as error:
                sender.finish(public_error(error))

        self._slow_texts.submit(session_id, answered)

    def _make_voice(self, inputs: Inputs, sender: Answerer) -> None:
        def made(voice: SpeakerTokens | BistreamError) -> None:  # called by the engine's thread
            self.post_answer(sender, partial(_answer_voice, sender, voice))

        labels = Labels.of(inputs.value("gender"), inputs.value("pitch"), inputs.value("speaking_rate"))
        self._service.voices.begin(labels, inputs.value("seed"), made)

    def _cancel(self, session_id: str, sender: Answerer) -> None:
        self._service.cancel(session_id)
        sender.finish()

    def _append(self, session_id: str, text: bytes, is_end: bool, sender: Answerer) -> None:
        self._service.append(session_id, text, is_end)
        sender.finish()

    def _start(self, start: LanguageModelStart, sender: Answerer) -> None:
        def sink(message: SpeechTokens | BistreamError) -> None:  # called by the engine's thread
            self.post_answer(sender, partial(_send, sender, message))

        self._service.start(start, sink)

    def _start_pulled(self, start: LanguageModelStart, sender: Answerer) -> None:
        mailbox = TokenMailbox(on_first_hop=self._first_hop_tokens.observe)
        self._service.start(start, mailbox.post)
        with self.handling:
            self._drop_old_mailboxes()
            self._mailboxes[start.session_id] = mailbox
        sender.finish()

    def _pull(self, session_id: str, inputs: Inputs, sender: Answerer) -> None:
        mailbox = self._mailboxes.get(session_id)
        if mailbox is None:
            raise UnknownSessionError("No session with this id has tokens to take; start one with is_pull.", session_id)

        def answer(message: SpeechTokens | BistreamError) -> None:
            self.post_answer(sender, partial(_answer, sender, message))

        slack_s, wanted, waiting = inputs.value("slack_s"), inputs.value("wanted_tokens") or 1, mailbox.num_tokens
        if slack_s is not None:  # the caller does not know of the tokens that wait here
            self._service.demand(session_id, slack_s + waiting / self._service.tokens_per_second, wanted - waiting)
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
        self._slow_texts.close()
        self._service.close()
        self.outbox.shutdown()


def _send(sender: Answerer, message: SpeechTokens | BistreamError) -> None:
    if isinstance(message, BistreamError):
        sender.finish(message)
        return
    if message.token_ids or message.is_final:
        sender.send(speech_token_values(message))
    if message.is_final:
        sender.finish()


def _answer(sender: Answerer, message: SpeechTokens | BistreamError) -> None:
    if isinstance(message, BistreamError):
        sender.finish(message)
    else:
        sender.send(speech_token_values(message), is_last=True)


def _answer_voice(sender: Answerer, voice: SpeakerTokens | BistreamError) -> None:
    if isinstance(voice, BistreamError):
        sender.finish(voice)
    else:
        sender.send({"made_voice": voice.numbers}, is_last=True)
