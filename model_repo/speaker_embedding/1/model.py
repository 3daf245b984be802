"""A reference recording in, its speaker embedding out. Glue between Triton and ``bistream.voice.speaker_encoder``."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from bistream.config import RuntimeConfig
from bistream.triton.inputs import RequestInputs
from bistream.triton.model import UnaryModel
from bistream.triton.sender import Arrays
from bistream.wire import SPEAKER_EMBEDDING


class TritonPythonModel(UnaryModel):
    backend = pb_utils
    contract = SPEAKER_EMBEDDING

    def open(self, config: RuntimeConfig) -> None:
        from bistream.voice.speaker_encoder import SpeakerEncoder

        self._encoder = SpeakerEncoder.from_model_dir(config.model_dir, config.device, config.num_threads)

    def answer(self, inputs: RequestInputs, request: Any) -> Arrays:
        from bistream.voice.reference_audio import check_reference_audio

        recording = check_reference_audio(inputs.required("reference_wav"), None, self.config)
        return {"prompt_spk_embedding": self._encoder.embedding(recording)}

    def close(self) -> None:
        pass
