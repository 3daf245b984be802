"""Speech tokens in, waveform out: hops of sessions, or a whole utterance at once. Glue between Triton and ``bistream.token2wav``."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import astuple
from functools import partial

import triton_python_backend_utils as pb_utils

from bistream.config import RuntimeConfig
from bistream.contract.codec import Inputs
from bistream.contract.fields import TOKEN2WAV
from bistream.errors import InvalidInputError
from bistream.metrics.catalogue import TIER
from bistream.processes.start_phases import phase
from bistream.transport.sender import Answerer, public_error
from bistream.triton.inputs import voice_prompt
from bistream.triton.model import SiblingModel
from bistream.types import AudioOptions, FloatArray, VoicePrompt


class TritonPythonModel(SiblingModel):
    """One instance: it owns the state of flow and vocoder, and batches the hops of sessions."""

    backend = pb_utils
    contract = TOKEN2WAV

    def open(self, config: RuntimeConfig) -> None:
        with phase("imports"):  # torch among them
            from bistream.gpu.claims import HOPS, gpu_claims
            from bistream.gpu.device import resolve_device
        from bistream.sessions.named_voices import open_voices
        from bistream.token2wav.service import Token2Wav
        from bistream.voice.cache import VoiceCache

        self._named = open_voices(config)
        self._voices = VoiceCache(config.voice_cache_size)
        self._token2wav = Token2Wav(config, recorder=self.recorder, gpu_claims=gpu_claims(resolve_device(config.device), HOPS))
        self.recorder.read(TIER, lambda: {choice.labels: 1.0 for choice in self._token2wav.tiers})

    def handle(self, inputs: Inputs, sender: Answerer) -> None:
        session_id = inputs.value("session_id")
        if session_id is not None and inputs.value("is_cancel"):
            self._token2wav.cancel(session_id)
            sender.finish()
            return
        if session_id is None or inputs.value("is_offline"):
            waveform = self._synthesize(session_id, inputs)
        else:
            waveform = self._hop(session_id, inputs)
        waveform.add_done_callback(lambda future: self.post_answer(sender, partial(self._send, sender, future)))

    def _hop(self, session_id: str, inputs: Inputs) -> Future[FloatArray]:
        from bistream.token2wav.service import Token2WavHop

        return self._token2wav.hop(
            Token2WavHop(
                session_id=session_id,
                token_ids=tuple(inputs.value("target_speech_tokens").tolist()),
                finalize=inputs.value("finalize"),
                prompt=self._prompt(inputs),
                audio=inputs.read(AudioOptions),
                playback_buffer_s=inputs.value("playback_buffer_s"),
                expected_speech_s=inputs.value("expected_speech_s"),
                lookahead_tokens=inputs.value("lookahead_tokens"),
                speed=_speed(inputs),
            )
        )

    def _synthesize(self, session_id: str | None, inputs: Inputs) -> Future[FloatArray]:
        prompt = self._prompt(inputs)
        if prompt is None:
            raise InvalidInputError("The voice is missing; send prompt_spk_embedding (with prompt_speech_tokens and _feat) or speaker_id.")
        tokens = inputs.value("target_speech_tokens").tolist()
        return self._token2wav.synthesize(tokens, prompt, inputs.read(AudioOptions), _speed(inputs), session_id)

    def _prompt(self, inputs: Inputs) -> VoicePrompt | None:
        speaker_id = inputs.value("speaker_id")
        if speaker_id is None:
            return voice_prompt(inputs, self._token2wav.sizes.mel_bins)
        return self._voices.get_or_build(self._named.content_key(speaker_id), lambda: self._named.load(speaker_id))

    def healthy(self) -> bool:
        return self._token2wav.healthy

    def close(self) -> None:
        self._token2wav.close()
        self.outbox.shutdown()

    def _send(self, sender: Answerer, future: Future[FloatArray]) -> None:
        error = future.exception()
        if error is not None:
            sender.finish(public_error(error))
            return
        sender.send({"waveform": future.result(), "load_report": astuple(self._token2wav.report())}, is_last=True)


def _speed(inputs: Inputs) -> float:
    speed: float | None = inputs.value("speed")
    return 1.0 if speed is None else speed
