"""Reference recordings in, what a speaker is known by out. Glue between Triton and ``bistream.voice``."""

from __future__ import annotations

from collections.abc import Sequence

import triton_python_backend_utils as pb_utils

from bistream.config import RuntimeConfig
from bistream.contract.codec import Inputs, Values
from bistream.contract.fields import SPEAKER_EMBEDDING
from bistream.triton.model import BatchedModel
from bistream.triton.startup import yield_cores, yield_gpu
from bistream.types import FloatArray


class TritonPythonModel(BatchedModel):
    backend = pb_utils
    contract = SPEAKER_EMBEDDING

    def open(self, config: RuntimeConfig) -> None:
        from bistream.voice.factory import load_speakers

        yield_gpu()
        self._encoder = load_speakers(config, before_cpu=yield_cores)  # hops have deadlines, a recording has none

    def read(self, inputs: Inputs) -> FloatArray:
        from bistream.voice.reference_audio import check_reference_audio

        return check_reference_audio(inputs.value("reference_wav"), None, self.config)

    def answers(self, items: Sequence[FloatArray]) -> list[Values]:
        found = self._encoder.features_of(items)
        return [{"prompt_spk_embedding": one.embedding, "prompt_speech_feat": one.mel} for one in found]

    def close(self) -> None:
        pass
