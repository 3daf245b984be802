"""Reference recordings in, their speech tokens out. Glue between Triton and ``bistream.voice``."""

from __future__ import annotations

from collections.abc import Sequence

import triton_python_backend_utils as pb_utils

from bistream.config import RuntimeConfig
from bistream.contract.codec import Inputs, Values
from bistream.contract.fields import AUDIO_TOKENIZER
from bistream.triton.model import BatchedModel
from bistream.triton.startup import yield_cores, yield_gpu
from bistream.types import FloatArray


class TritonPythonModel(BatchedModel):
    backend = pb_utils
    contract = AUDIO_TOKENIZER

    def open(self, config: RuntimeConfig) -> None:
        from bistream.voice.factory import load_tokenizer

        yield_gpu()
        self._tokenizer = load_tokenizer(config, before_cpu=yield_cores)  # hops have deadlines, a recording has none

    def read(self, inputs: Inputs) -> FloatArray:
        from bistream.voice.reference_audio import check_reference_audio

        return check_reference_audio(inputs.value("reference_wav"), inputs.value("reference_wav_len"), self.config)

    def answers(self, items: Sequence[FloatArray]) -> list[Values]:
        return [{"prompt_speech_tokens": tokens} for tokens in self._tokenizer.tokens_of(items)]

    def close(self) -> None:
        pass
