"""The inputs of a Triton request, and the requests of the front models and the voice of ``token2wav`` that are read from them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from bistream.contract.checks import check_session_secret
from bistream.contract.codec import Arrays, Inputs, Values, to_value
from bistream.contract.field import Field
from bistream.contract.fields import SESSION_SECRET_PARAMETER, ModelContract
from bistream.errors import InvalidInputError
from bistream.sessions.ports import BistreamRequest
from bistream.types import VoicePrompt


class TritonInputs(Inputs):
    """Of a ``pb_utils.InferenceRequest``."""

    def __init__(self, request: Any, contract: ModelContract) -> None:
        super().__init__(contract)
        self._request = request
        self._tensors = {tensor.name(): tensor for tensor in request.inputs()}  # each call makes new objects of all of them

    def _has(self, name: str) -> bool:
        return name in self._tensors

    def _given(self, field: Field) -> Any:
        return to_value(field, self._tensors[field.name].as_numpy())

    def arrays(self) -> Arrays:
        """All of the contract's that the request has, as they came. Copied: Triton reuses the memory."""
        return {name: tensor.as_numpy().copy() for name, tensor in self._tensors.items() if name in self.contract.by_name}

    def parameter(self, name: str) -> Any:
        return json.loads(self._request.parameters() or "{}").get(name)


def bistream_request(inputs: Inputs) -> BistreamRequest:
    """The request of ``cosyvoice2_bistream``."""
    secret = inputs.parameter(SESSION_SECRET_PARAMETER)
    if secret is not None:
        check_session_secret(secret)
    return inputs.read(BistreamRequest, session_secret=secret)


def upstream_values(inputs: TritonInputs, is_offline: bool) -> Values:
    """The call of ``cosyvoice2_bistream`` for a request in upstream's tensors: a session with its whole text, or recording to convert.

    The values are checked where they are used.
    """
    arrays = inputs.arrays()
    if not {"target_text", "source_wav"} & arrays.keys():
        raise InvalidInputError("Input target_text is missing; send the text to speak, or source_wav to convert a recording.")
    if inputs.contract.takes_blank_transcript and not (inputs.value("reference_text") or "").strip():
        arrays.pop("reference_text", None)
    return {**arrays, "is_offline": is_offline}


def voice_prompt(inputs: Inputs, mel_bins: int) -> VoicePrompt | None:
    """The voice in a session's first request to ``token2wav``; ``None`` when the request has none.

    mel_bins: width of the empty features that replace an absent ``prompt_speech_feat``. The service checks whether shapes match.
    """
    embedding, feat = inputs.value("prompt_spk_embedding"), inputs.value("prompt_speech_feat")
    if embedding is None:
        return None
    if feat is None:
        feat = np.zeros((0, mel_bins), np.float32)
    return VoicePrompt("", inputs.value("prompt_speech_tokens"), feat, embedding)
