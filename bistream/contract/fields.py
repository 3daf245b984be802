"""The wire contract as a table: every tensor of every model, with its type, its rule, its models and one line of documentation.

A field of a request is one row here. Read from it: how tensors become values and the reverse (``codec.py``), what the gate lets through,
what an append may carry, the arguments of the clients, the options of ``bistream say``, the inputs and outputs in
``templates/*/config.pbtxt`` and the tables of ``docs/wire_protocol.md`` (``scripts/write_contract.py``). Importable without torch.

In ``config.pbtxt`` the shapes of a batched model's inputs lack the first axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from bistream.contract import checks
from bistream.contract.field import Field
from bistream.contract.lexicon import check_lexicon

# A request parameter, not a tensor: a start may carry it, and its session is then known only to requests that carry the same.
SESSION_SECRET_PARAMETER = "session_secret"


@dataclass(frozen=True, eq=False)
class ModelContract:
    """is_batched: Triton counts the first axis of its inputs as the batch, and hands over several requests at once.

    extra: fields with this word among their models belong to it as well. family: the only one whose servers have it; empty: all have it.
    For upstream's clients: takes_blank_transcript: a blank ``reference_text`` is none, as they cannot leave it out; repeated_samples: of
    one chunk that the next begins with, as they cross-fade them.
    """

    name: str
    decoupled: bool
    is_batched: bool = False
    extra: str = ""
    family: str = ""
    takes_blank_transcript: bool = False
    repeated_samples: int = 0

    @cached_property
    def inputs(self) -> tuple[Field, ...]:
        return tuple(one for one in INPUTS if not {self.name, self.extra}.isdisjoint(one.models))

    @cached_property
    def outputs(self) -> tuple[Field, ...]:
        return tuple(one for one in OUTPUTS if not {self.name, self.extra}.isdisjoint(one.models))

    @cached_property
    def by_name(self) -> dict[str, Field]:
        """The inputs."""
        return {one.name: one for one in self.inputs}


COSYVOICE2_BISTREAM = ModelContract("cosyvoice2_bistream", decoupled=True)  # of clients
# The same model as it is called by ``cosyvoice2`` through a channel; the gate lets none of the fields pass that this adds.
CALLED_BISTREAM = ModelContract("cosyvoice2_bistream", decoupled=True, extra="calls of cosyvoice2")
# Upstream's tensors, then optional ones of ours; whether it is decoupled is a placeholder of its template (upstream's DECOUPLED_MODE).
COSYVOICE2 = ModelContract("cosyvoice2", decoupled=True)
# The same for the clients of Spark-TTS's upstream (runtime/triton_trtllm/client_grpc.py), which fade for 0.1 s (--chunk-overlap-duration).
SPARK_TTS = ModelContract("spark_tts", True, extra=COSYVOICE2.name, family="spark", takes_blank_transcript=True, repeated_samples=1600)
LLM_BISTREAM = ModelContract("llm_bistream", decoupled=True)
TOKEN2WAV = ModelContract("token2wav", decoupled=True)
AUDIO_TOKENIZER = ModelContract("audio_tokenizer", decoupled=False, is_batched=True)
SPEAKER_EMBEDDING = ModelContract("speaker_embedding", decoupled=False, is_batched=True)
CONTRACTS = (CALLED_BISTREAM, COSYVOICE2, SPARK_TTS, LLM_BISTREAM, TOKEN2WAV, AUDIO_TOKENIZER, SPEAKER_EMBEDDING)
# Upstream's name of its front model for CosyVoice3, which has the same tensors; the gate answers to it, whichever family is served.
OTHER_NAMES = {"cosyvoice3": COSYVOICE2.name}

_FRONT, _LM, _WAV, _CALLS = "cosyvoice2_bistream", "llm_bistream", "token2wav", CALLED_BISTREAM.extra
_BOTH = (_FRONT, "cosyvoice2")  # front models
_ANALYSES = ("audio_tokenizer", "speaker_embedding")
_VECTOR, _WAVE = (-1,), (1, -1)
_NO_CODES = np.zeros(0, np.int32)

INPUTS = (
    Field("target_text", "BYTES", _BOTH, "a piece of UTF-8 text, cut anywhere, even inside a character; may be empty", is_text=False),
    Field("text", "BYTES", (_LM,), "as `target_text`", default=b"", is_text=False),
    Field(
        "session_id",
        "BYTES",
        (_FRONT, _LM, _WAV),
        "`[A-Za-z0-9_.:-]`, 1 to 128 characters; absent: this request is a whole session",
        check=checks.check_session_id,
    ),
    Field("is_start", "BOOL", (_FRONT, _LM), "default true. True opens the session; false appends to a live one", default=True),
    Field("is_end", "BOOL", (_FRONT, _LM), "default true. True: no more text will come", default=True),
    Field("is_cancel", "BOOL", (_FRONT, _LM, _WAV), "default false. True: stop now and drop unsent audio", default=False),
    Field("reference_wav", "FP32", _BOTH, "with the start: 16 kHz mono in [-1,1], 0.5 to 30 s", _WAVE, is_start_only=True),
    Field("reference_wav", "FP32", _ANALYSES, "16 kHz mono in [-1,1]", _WAVE, optional=False),
    Field("reference_wav_len", "INT32", (*_BOTH, "audio_tokenizer"), "valid samples of `reference_wav` (the rest is padding); absent: all"),
    Field("reference_text", "BYTES", _BOTH, "transcript of the reference; absent: the voice is used cross-lingually", is_start_only=True),
    Field(
        "reference_hash",
        "BYTES",
        _BOTH,
        "with the start, instead of a recording that this model has heard before: its [hash](#the-hash-of-a-recording)",
        check=checks.check_reference_hash,
        is_start_only=True,
    ),
    Field(
        "speaker_id",
        "BYTES",
        (*_BOTH, _WAV),
        "with the start, instead of a reference: a registered voice, or a preset (a speaker of the checkpoint's `spk2info.pt`);"
        " 1 to 64 letters and digits of any script, `_`, `-`",
        check=checks.check_speaker_name,
        is_start_only=True,
    ),
    Field(
        "gender",
        "BYTES",
        (*_BOTH, _LM),
        "with the start: `female` or `male`, to have a voice made of labels in place of a reference; of families that do so",
        check=checks.one_of("gender", checks.GENDERS),
        is_start_only=True,
    ),
    Field(
        "pitch",
        "BYTES",
        (*_BOTH, _LM),
        "with `gender`: `very_low`, `low`, `moderate` (the default), `high`, `very_high`",
        check=checks.one_of("pitch", checks.LEVELS),
        is_start_only=True,
    ),
    Field(
        "speaking_rate",
        "BYTES",
        (*_BOTH, _LM),
        "with `gender`: how fast the voice speaks by nature, in the words of `pitch`",
        check=checks.one_of("speaking_rate", checks.LEVELS),
        is_start_only=True,
    ),
    # The language model's part of a request, ``types.GenerationOptions``, which nothing in between looks at one by one.
    Field("seed", "INT64", (_FRONT, _LM, _WAV), "with the start: sampling; default 0", default=0, check=checks.check_seed),
    Field(
        "temperature",
        "FP32",
        (_FRONT, _LM),
        "with the start: sampling, 0 (greedy) to 10; default 1",
        default=1.0,
        check=checks.check_temperature,
    ),
    Field("top_k", "INT32", (_FRONT, _LM), "with the start: sampling, 1 to 100; default: the checkpoint's, 25", check=checks.check_top_k),
    Field(
        "top_p",
        "FP32",
        (_FRONT, _LM),
        "with the start: sampling, above 0, at most 1; default: the checkpoint's, 0.8",
        check=checks.check_top_p,
    ),
    Field(
        "instruct_text",
        "BYTES",
        (*_BOTH, _LM),
        "with the start: how to speak, an emotion, a dialect, a speed, such as 用四川话说",
        default="",
        is_start_only=True,
        says=checks.is_instruction,
    ),
    Field(
        "text_normalization",
        "BYTES",
        (*_BOTH, _LM),
        "with the start: how the text is prepared, `raw`, or `off` (without what has no sound), `auto`, `zh` or `en` (numbers read out as"
        " well), each of these four also with `+markdown` behind it; `+markdown`: the server's own with Markdown; absent: the server's own",
        check=checks.check_text_normalization,
        is_start_only=True,
    ),
    Field(
        "text_type",
        "BYTES",
        (*_BOTH, _LM),
        "with the start: `text` (the default) or `ssml`, whose [elements](#ssml) are not spoken",
        check=checks.one_of("text_type", checks.TEXT_TYPES),
        is_start_only=True,
    ),
    Field(
        "lexicon",
        "BYTES",
        (*_BOTH, _LM),
        "with the start: a JSON object of words or phrases and [how they are respelled](#pronunciation), before the server's own",
        check=check_lexicon,
        is_start_only=True,
    ),
    Field(
        "continues",
        "BYTES",
        (_FRONT, _LM),
        "with the start: the `session_id` of an earlier session of this caller, whose [melody goes on](#the-melody-goes-on)",
        check=partial(checks.check_session_id, name="continues"),
        is_start_only=True,
    ),
    Field(
        "speed",
        "FP32",
        (_FRONT, _WAV),
        "0.5 to 2, default 1: [how fast](#speed) it is spoken; with a later piece: from there on, absent: as before",
        check=checks.check_speed,
    ),
    Field(
        "is_cross_lingual",
        "BOOL",
        _BOTH,
        "with the start, default false. True: the transcript of the voice is left aside",
        default=False,
        is_start_only=True,
    ),
    Field(
        "is_marked",
        "BOOL",
        (*_BOTH, _WAV),
        "with the start, default false. True: the audio has the [watermark](watermark.md); of servers that mark on request",
        default=False,
        is_start_only=True,
    ),
    Field(
        "source_wav",
        "FP32",
        _BOTH,
        "with the start, instead of a text: a recording to [convert](#voice-conversion), 16 kHz mono in [-1,1], 0.5 to 30 s",
        _WAVE,
        is_start_only=True,
    ),
    Field("source_wav_len", "INT32", _BOTH, "valid samples of `source_wav`; absent: all"),
    Field(
        "is_voice_list",
        "BOOL",
        (_FRONT,),
        "default false. True: no session; the answer is the [list of voices](#the-voices-of-a-server)",
        default=False,
    ),
    Field(
        "is_pull",
        "BOOL",
        (_LM,),
        "on a start: keep the tokens until they are pulled; otherwise: pull, one answer with the tokens so far",
        default=False,
    ),
    Field(
        "wanted_tokens",
        "INT32",
        (_LM,),
        "answer a pull with at least this many, or fewer when no more come for now; default 1",
        default=1,
    ),
    Field("slack_s", "FP32", (_LM,), "with a pull: audio seconds that the listener has, those of pulled tokens included; absent: unknown"),
    Field("target_speech_tokens", "INT32", (_WAV,), "what to render", _VECTOR, default=_NO_CODES),
    Field("finalize", "BOOL", (_WAV,), "default false. True: the last tokens of the session", default=False),
    Field(
        "lookahead_tokens",
        "INT32",
        (_WAV,),
        "Spark-TTS: tokens behind the last one that is heard; 0: the speech pauses; absent: as the model needs",
    ),
    Field("prompt_text", "BYTES", (_LM,), "transcript of the voice", default=""),
    Field("prompt_speech_tokens", "INT32", (_LM, _WAV), "raw codes of the voice's recording", _VECTOR, default=_NO_CODES),
    Field("speaker_tokens", "INT32", (_LM,), "who speaks, in the model's own numbers, where it is told", _VECTOR, default=_NO_CODES),
    Field("prompt_speech_feat", "FP32", (_WAV,), "mel frames of the voice's recording, two for each code", (-1, -1)),
    Field("prompt_spk_embedding", "FP32", (_WAV,), "the speaker of the voice", _VECTOR),
    Field("playback_buffer_s", "FP32", (_WAV,), "audio seconds that the listener has; default 0", default=0.0),
    Field("expected_speech_s", "FP32", (_WAV,), "how long the speech of the session is likely to be"),
    Field(
        "is_offline",
        "BOOL",
        (_CALLS,),
        "with the whole text in the first request, default false. True: render it as a whole, as `cosyvoice2` does offline",
        default=False,
        is_start_only=True,
    ),
    Field("is_offline", "BOOL", (_WAV,), "default false. True: a whole utterance, which `session_id` only cancels", default=False),
)

OUTPUTS = (
    Field(
        "waveform",
        "FP32",
        (_FRONT,),
        "mono in [-0.99, 0.99], at the model's `sample_rate`; play chunk after chunk, no cross-fade needed",
        _WAVE,
    ),
    Field("waveform", "FP32", ("cosyvoice2", _WAV), "mono in [-0.99, 0.99], at the model's `sample_rate`", _VECTOR),
    Field("sequence_number", "INT32", (_FRONT,), "0, 1, 2, ..."),
    Field("speech_token_ids", "INT32", (_LM,), "further speech tokens", _VECTOR),
    Field("made_voice", "INT32", (_LM,), "of a request with `gender`, which is no session: the voice, as `speaker_tokens`", _VECTOR),
    Field("is_final", "BOOL", (_LM,), "the last message of the session"),
    Field("finish_reason", "BYTES", (_LM,), "of the last message: eos, length, cancelled, error"),
    Field(
        "text_consumed",
        "INT32",
        (_FRONT, _LM),
        "characters of the session's text that are certainly spoken once this chunk has been played",
    ),
    Field(
        "text_position",
        "INT32",
        (_FRONT,),
        "estimated character that is spoken at the end of this chunk, between `text_consumed` and what the model had been given;"
        " never decreases; earlier servers send none",
    ),
    Field("voices", "BYTES", (_FRONT,), "of a request with `is_voice_list`: the [list of voices](#the-voices-of-a-server)"),
    Field(
        "text_fed",
        "INT32",
        (_LM,),
        "characters, and text tokens, that the model had been given; the character that the last token speaks, -1: not known",
        (1, 3),
    ),
    Field("is_resting", "BOOL", (_LM,), "no more tokens until more text comes"),
    Field(
        "speech_breaks",
        "INT32",
        (_LM,),
        "place among the tokens, how many of them, milliseconds of silence instead, rate (%)",
        (-1, 4),
    ),
    Field("load_report", "FP32", (_WAV,), "for the front models (`bistream/token2wav/load_report.py`)", (1, 5)),
    Field("prompt_speech_tokens", "INT32", ("audio_tokenizer",), "raw codes, 25 per second", _VECTOR),
    Field("prompt_spk_embedding", "FP32", ("speaker_embedding",), "the speaker", _VECTOR),
    Field("prompt_speech_feat", "FP32", ("speaker_embedding",), "the 24 kHz log-mel", (-1, -1)),
)
