"""The wire contract: names, types and shapes of every tensor, and the form of errors. Importable without torch.

Templates, model code, clients and tests read the contract from here; a test checks the templates against it.
``dims`` follow ``config.pbtxt`` (``max_batch_size: 0``, so they are full shapes; -1 is any size). Sizes that depend on the checkpoint are
left open and checked by the model that needs them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bistream.errors import ERRORS_BY_CODE, BistreamError

SESSION_ID_PATTERN = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")
SPEAKER_ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@dataclass(frozen=True)
class TensorSpec:
    """One input or output. ``datatype`` is Triton's wire name: BYTES, BOOL, INT32, INT64, FP32."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class ModelContract:
    name: str
    decoupled: bool
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def _scalar(name: str, datatype: str) -> TensorSpec:
    return TensorSpec(name, datatype, (1, 1), optional=True)


_REFERENCE = (
    TensorSpec("reference_wav", "FP32", (1, -1), optional=True),
    _scalar("reference_wav_len", "INT32"),
    _scalar("reference_text", "BYTES"),
)
_SESSION = (_scalar("session_id", "BYTES"), _scalar("is_start", "BOOL"), _scalar("is_end", "BOOL"), _scalar("is_cancel", "BOOL"))
_SAMPLING = (_scalar("seed", "INT64"), _scalar("temperature", "FP32"), _scalar("top_k", "INT32"), _scalar("top_p", "FP32"))

COSYVOICE2_BISTREAM = ModelContract(
    "cosyvoice2_bistream",
    decoupled=True,
    inputs=(_scalar("target_text", "BYTES"), *_REFERENCE, _scalar("speaker_id", "BYTES"), *_SESSION, *_SAMPLING, _scalar("speed", "FP32")),
    outputs=(
        TensorSpec("waveform", "FP32", (1, -1)),
        TensorSpec("sequence_number", "INT32", (1, 1)),
        TensorSpec("text_consumed", "INT32", (1, 1)),
    ),
)
# Upstream's exact tensors; whether it is decoupled is a placeholder of its template (upstream's DECOUPLED_MODE).
COSYVOICE2 = ModelContract(
    "cosyvoice2",
    decoupled=True,
    inputs=(*_REFERENCE, TensorSpec("target_text", "BYTES", (1, 1))),
    outputs=(TensorSpec("waveform", "FP32", (-1,)),),
)
LLM_BISTREAM = ModelContract(
    "llm_bistream",
    decoupled=True,
    inputs=(
        _scalar("text", "BYTES"),
        *_SESSION,
        _scalar("is_pull", "BOOL"),  # on a start: keep the tokens until they are pulled; otherwise: pull, one answer with the tokens so far
        _scalar("wanted_tokens", "INT32"),  # answer a pull with at least this many, or fewer when no more come for now; absent: 1
        _scalar("prompt_text", "BYTES"),
        TensorSpec("prompt_speech_tokens", "INT32", (-1,), optional=True),
        *_SAMPLING,
    ),
    outputs=(
        TensorSpec("speech_token_ids", "INT32", (-1,)),
        TensorSpec("is_final", "BOOL", (1, 1)),
        TensorSpec("finish_reason", "BYTES", (1, 1)),
        TensorSpec("text_consumed", "INT32", (1, 1)),
        TensorSpec("error", "BYTES", (1, 1)),  # with finish_reason error: the output of format_error
    ),
)
TOKEN2WAV = ModelContract(
    "token2wav",
    decoupled=True,
    inputs=(
        TensorSpec("target_speech_tokens", "INT32", (-1,), optional=True),
        _scalar("session_id", "BYTES"),
        _scalar("finalize", "BOOL"),
        _scalar("is_cancel", "BOOL"),
        TensorSpec("prompt_speech_tokens", "INT32", (-1,), optional=True),
        TensorSpec("prompt_speech_feat", "FP32", (-1, -1), optional=True),
        TensorSpec("prompt_spk_embedding", "FP32", (-1,), optional=True),
        _scalar("speaker_id", "BYTES"),
        _scalar("seed", "INT64"),
        _scalar("speed", "FP32"),
        _scalar("playback_buffer_s", "FP32"),
    ),
    outputs=(TensorSpec("waveform", "FP32", (-1,)),),
)
AUDIO_TOKENIZER = ModelContract(
    "audio_tokenizer",
    decoupled=False,
    inputs=(TensorSpec("reference_wav", "FP32", (1, -1)), TensorSpec("reference_wav_len", "INT32", (1, 1), optional=True)),
    outputs=(TensorSpec("prompt_speech_tokens", "INT32", (-1,)),),
)
SPEAKER_EMBEDDING = ModelContract(
    "speaker_embedding",
    decoupled=False,
    inputs=(TensorSpec("reference_wav", "FP32", (1, -1)),),
    outputs=(TensorSpec("prompt_spk_embedding", "FP32", (-1,)),),
)
CONTRACTS = (COSYVOICE2_BISTREAM, COSYVOICE2, LLM_BISTREAM, TOKEN2WAV, AUDIO_TOKENIZER, SPEAKER_EMBEDDING)


_ERROR_PATTERN = re.compile(r"(?P<code>[A-Z_]+): (?P<sentence>.*?)(?: \[session (?P<session>[^\]]*)\])?\Z", re.DOTALL)


def format_error(error: BistreamError) -> str:
    """``CODE: sentence [session ID]``; the session part only for an error that belongs to one."""
    suffix = f" [session {error.session_id}]" if error.session_id else ""
    return f"{error.code}: {error.sentence}{suffix}"


def parse_error(message: str) -> BistreamError:
    """The error that ``format_error`` wrote. Anything else (a message of Triton itself) becomes a ``BistreamError``."""
    match = _ERROR_PATTERN.search(message)
    if match is None or match["code"] not in ERRORS_BY_CODE:
        return BistreamError(message)
    return ERRORS_BY_CODE[match["code"]](match["sentence"], match["session"])
