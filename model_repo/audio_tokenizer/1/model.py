"""A reference recording in, its speech tokens out. Glue between Triton and ``bistream.voice.speech_tokenizer``."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from bistream.config import RuntimeConfig
from bistream.triton.inputs import RequestInputs
from bistream.triton.model import UnaryModel
from bistream.triton.sender import Arrays
from bistream.wire import AUDIO_TOKENIZER


class TritonPythonModel(UnaryModel):
    backend = pb_utils
    contract = AUDIO_TOKENIZER

    def open(self, config: RuntimeConfig) -> None:
        from bistream.voice.speech_tokenizer import SpeechTokenizer

        self._tokenizer = SpeechTokenizer.from_model_dir(config.model_dir, config.device, config.num_threads)

    def answer(self, inputs: RequestInputs, request: Any) -> Arrays:
        from bistream.voice.reference_audio import check_reference_audio

        recording = check_reference_audio(inputs.required("reference_wav"), inputs.integer("reference_wav_len"), self.config)
        return {"prompt_speech_tokens": self._tokenizer.tokens(recording)}

    def close(self) -> None:
        pass
