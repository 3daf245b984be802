"""The wire contract: names, types and shapes of every tensor, and the form of errors. Importable without torch.

Templates, model code, clients and tests read the contract from here; a test checks the templates against it.
``dims`` are full shapes, -1 is any size; in ``config.pbtxt`` those of a batched model's inputs lack the first axis. Sizes that depend on
the checkpoint are left open and checked by the model that needs them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bistream.errors import ERRORS_BY_CODE, BistreamError

SESSION_ID_PATTERN = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")
# A request parameter, not a tensor: a start may carry it, and its session is then known only to requests that carry the same.
SESSION_SECRET_PARAMETER = "session_secret"
SESSION_SECRET_PATTERN = SESSION_ID_PATTERN
SPEAKER_ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")  # of a voice that is registered: the name of a file
SPEAKER_NAME_PATTERN = re.compile(r"[\w-]{1,64}\Z")  # of any voice: presets have names of their own, such as 中文女
# Preparation of a text. raw: none; off: characters without a sound are dropped; auto, zh, en: numbers are read out as well, with auto in
# the language of the sentence. Each but raw may have "+markdown" behind it.
_READINGS = ("off", "auto", "zh", "en")
SERVER_TEXT_NORMALIZATIONS = ("raw", *_READINGS, *(f"{reading}+markdown" for reading in _READINGS))
TEXT_NORMALIZATIONS = (*SERVER_TEXT_NORMALIZATIONS, "+markdown")  # of a request; the last one: as the server has it, with Markdown
REFERENCE_HASH_PATTERN = re.compile(r"[0-9a-f]{64}\Z")  # the output of ``reference_hash``


@dataclass(frozen=True)
class TensorSpec:
    """One input or output. ``datatype`` is Triton's wire name: BYTES, BOOL, INT32, INT64, FP32, UINT8."""

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
    is_batched: bool = False  # Triton counts the first axis of its inputs as the batch, and hands over several requests at once


def _scalar(name: str, datatype: str) -> TensorSpec:
    return TensorSpec(name, datatype, (1, 1), optional=True)


_REFERENCE = (
    TensorSpec("reference_wav", "FP32", (1, -1), optional=True),
    _scalar("reference_wav_len", "INT32"),
    _scalar("reference_text", "BYTES"),
    _scalar("reference_hash", "BYTES"),
)
_SESSION = (_scalar("session_id", "BYTES"), _scalar("is_start", "BOOL"), _scalar("is_end", "BOOL"), _scalar("is_cancel", "BOOL"))
# Between front doors and models: triton/channel.py. Without ``calls`` the answers to earlier ones are asked for.
_CHANNEL = (_scalar("channel_id", "BYTES"), TensorSpec("calls", "UINT8", (-1,), optional=True))
_ANSWERS = TensorSpec("answers", "UINT8", (-1,))
# How a voice is used: no transcript is cross-lingual speech, an instruction says how to speak.
_MANNER = (_scalar("instruct_text", "BYTES"), _scalar("is_cross_lingual", "BOOL"))
# Voice conversion: a recording whose words are spoken, instead of a text.
_SOURCE = (TensorSpec("source_wav", "FP32", (1, -1), optional=True), _scalar("source_wav_len", "INT32"))
_SAMPLING = (_scalar("seed", "INT64"), _scalar("temperature", "FP32"), _scalar("top_k", "INT32"), _scalar("top_p", "FP32"))

COSYVOICE2_BISTREAM = ModelContract(
    "cosyvoice2_bistream",
    decoupled=True,
    inputs=(
        _scalar("target_text", "BYTES"),
        *_REFERENCE,
        _scalar("speaker_id", "BYTES"),
        *_SESSION,
        *_SAMPLING,
        _scalar("speed", "FP32"),
        *_MANNER,
        *_SOURCE,
        _scalar("text_normalization", "BYTES"),
        _scalar("is_voice_list", "BOOL"),  # answered with ``voices`` alone
    ),
    outputs=(
        TensorSpec("waveform", "FP32", (1, -1)),
        TensorSpec("sequence_number", "INT32", (1, 1)),
        TensorSpec("text_consumed", "INT32", (1, 1)),
        TensorSpec("text_position", "INT32", (1, 1)),  # earlier servers send none
        TensorSpec("voices", "BYTES", (1, 1)),  # of a request with is_voice_list: ``voice_list.format_voices``
    ),
)
# Upstream's tensors, then optional ones of ours; whether it is decoupled is a placeholder of its template (upstream's DECOUPLED_MODE).
COSYVOICE2 = ModelContract(
    "cosyvoice2",
    decoupled=True,
    inputs=(
        *_REFERENCE,
        _scalar("target_text", "BYTES"),
        _scalar("speaker_id", "BYTES"),
        *_MANNER,
        *_SOURCE,
        _scalar("text_normalization", "BYTES"),
    ),
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
        _scalar(
            "slack_s", "FP32"
        ),  # with a pull: audio seconds that the listener has, those of tokens already pulled included; absent: unknown
        _scalar("prompt_text", "BYTES"),
        TensorSpec("prompt_speech_tokens", "INT32", (-1,), optional=True),
        *_SAMPLING,
        _scalar("text_normalization", "BYTES"),
        *_CHANNEL,
        _scalar("instruct_text", "BYTES"),
    ),
    outputs=(
        TensorSpec("speech_token_ids", "INT32", (-1,)),
        TensorSpec("is_final", "BOOL", (1, 1)),
        TensorSpec("finish_reason", "BYTES", (1, 1)),
        TensorSpec("text_consumed", "INT32", (1, 1)),
        # characters, and text tokens, that the model had been given; the character that the last token speaks, -1: not known
        TensorSpec("text_fed", "INT32", (1, 3)),
        TensorSpec("is_resting", "BOOL", (1, 1)),  # no more tokens until more text comes
        TensorSpec("error", "BYTES", (1, 1)),  # with finish_reason error: the output of format_error
        _ANSWERS,
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
        _scalar("expected_speech_s", "FP32"),
        *_CHANNEL,
    ),
    # load_report: token2wav/load_report.py, for the front doors
    outputs=(TensorSpec("waveform", "FP32", (-1,)), TensorSpec("load_report", "FP32", (1, 6)), _ANSWERS),
)
AUDIO_TOKENIZER = ModelContract(
    "audio_tokenizer",
    decoupled=False,
    inputs=(TensorSpec("reference_wav", "FP32", (1, -1)), TensorSpec("reference_wav_len", "INT32", (1, 1), optional=True)),
    outputs=(TensorSpec("prompt_speech_tokens", "INT32", (-1,)),),
    is_batched=True,
)
SPEAKER_EMBEDDING = ModelContract(
    "speaker_embedding",
    decoupled=False,
    inputs=(TensorSpec("reference_wav", "FP32", (1, -1)),),
    outputs=(TensorSpec("prompt_spk_embedding", "FP32", (-1,)), TensorSpec("prompt_speech_feat", "FP32", (-1, -1))),
    is_batched=True,
)
# Upstream's name of its front door for CosyVoice3, which has the same tensors; the gate answers to it, whichever family is served.
OTHER_NAMES = {"cosyvoice3": COSYVOICE2.name}
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
