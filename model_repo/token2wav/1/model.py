"""Speech tokens in, waveform out: hops of sessions, or a whole utterance at once. Glue between Triton and ``bistream.token2wav``."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import triton_python_backend_utils as pb_utils

from bistream.config import RuntimeConfig
from bistream.errors import InvalidInputError
from bistream.triton.inputs import RequestInputs, read_session_id, read_speaker_id, voice_prompt
from bistream.triton.model import DecoupledModel
from bistream.triton.sender import ResponseSender, SiblingResponseSender, public_error
from bistream.triton.tier_metrics import TierMetrics
from bistream.types import FloatArray, VoicePrompt
from bistream.wire import TOKEN2WAV


class TritonPythonModel(DecoupledModel):
    """One instance: it owns the state of flow and vocoder, and batches the hops of sessions."""

    backend = pb_utils
    contract = TOKEN2WAV

    def open(self, config: RuntimeConfig) -> None:
        from bistream.token2wav.service import Token2Wav
        from bistream.voice.cache import VoiceCache
        from bistream.voice.registry import VoiceRegistry

        self._registry = VoiceRegistry(config.voices_dir)
        self._voices = VoiceCache(config.voice_cache_size)
        self._token2wav = Token2Wav(config)
        self._tier_metrics = TierMetrics(pb_utils, self._token2wav.tiers)
        # Responses are sent by a separate thread: sending blocks on the server, and the computing thread must not block.
        self._outbox = ThreadPoolExecutor(max_workers=1, thread_name_prefix="token2wav-send")

    def sender(self, triton_sender: Any) -> ResponseSender:
        return SiblingResponseSender(pb_utils, triton_sender)

    def handle(self, inputs: RequestInputs, sender: ResponseSender) -> None:
        session_id = read_session_id(inputs)
        if session_id is None:
            waveform = self._synthesize(inputs)
        elif inputs.flag("is_cancel", False):
            self._token2wav.cancel(session_id)
            sender.finish()
            return
        else:
            waveform = self._hop(session_id, inputs)
        waveform.add_done_callback(lambda future: self._outbox.submit(_send, sender, future))

    def _hop(self, session_id: str, inputs: RequestInputs) -> Future[FloatArray]:
        from bistream.token2wav.service import Token2WavHop

        return self._token2wav.hop(
            Token2WavHop(
                session_id=session_id,
                token_ids=tuple(inputs.integers("target_speech_tokens").tolist()),
                finalize=inputs.flag("finalize", False),
                prompt=self._prompt(inputs),
                seed=inputs.integer("seed") or 0,
                playback_buffer_s=inputs.number("playback_buffer_s") or 0.0,
            )
        )

    def _synthesize(self, inputs: RequestInputs) -> Future[FloatArray]:
        prompt = self._prompt(inputs)
        if prompt is None:
            raise InvalidInputError("The voice is missing; send prompt_spk_embedding (with prompt_speech_tokens and _feat) or speaker_id.")
        speed = inputs.number("speed")
        tokens = inputs.integers("target_speech_tokens").tolist()
        return self._token2wav.synthesize(tokens, prompt, inputs.integer("seed") or 0, 1.0 if speed is None else speed)

    def _prompt(self, inputs: RequestInputs) -> VoicePrompt | None:
        speaker_id = read_speaker_id(inputs)
        if speaker_id is None:
            return voice_prompt(inputs, self._token2wav.sizes.mel_bins)
        return self._voices.get_or_build(self._registry.content_key(speaker_id), lambda: self._registry.load(speaker_id))

    def healthy(self) -> bool:
        return self._token2wav.healthy

    def close(self) -> None:
        self._tier_metrics.close()
        self._token2wav.close()
        self._outbox.shutdown()


def _send(sender: ResponseSender, future: Future[FloatArray]) -> None:
    error = future.exception()
    if error is not None:
        sender.fail(public_error(error))
        return
    sender.send_last({"waveform": future.result()})
