"""Sizes of a language model that has one table of text and speech tokens: a plain Qwen2.5 with a tied head.

Three files say them: the model's ``config.json``, the audio tokenizer's yaml (codes) and ``config.yaml`` (rates). Called by
``reader.read_config``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from bistream.checkpoints.config import LanguageModelConfig
from bistream.checkpoints.sizes import language_model_config
from bistream.errors import CheckpointError
from bistream.families.bicodec_tokens import PLACE_OF_STOP, BiCodecTokens
from bistream.families.family import Family

RELEASED = BiCodecTokens(first=151_643, num_global=4096, num_semantic=8192)
# Upstream's generate() in cli/SparkTTS.py.
TEMPERATURE, TOP_K, TOP_P = 0.8, 50, 0.95


@dataclass(frozen=True)
class OneTableConfig(LanguageModelConfig):
    """text_vocab_size: rows of the table, those of speech and of no token included.

    Speech tokens, and the id that ends them, are rows of it, too: the ids behind the table (``TokenSpace.speech_offset``) are second names
    for these, so that whatever counts in speech tokens need not know where they are.

    longest_sequence: positions of a text and its speech; training dropped longer ones (SparkVox, prepare_train.py).
    temperature: the usual one of a request.
    """

    text_vocab_size: int = 166_000
    speech_token_size: int = 8192
    head_has_bias: bool = False
    top_p: float = TOP_P
    top_k: int = TOP_K
    win_size: int = 0  # no rule against repetition
    tau_r: float = 0.0
    temperature: float = TEMPERATURE
    tokens: BiCodecTokens = RELEASED
    longest_sequence: int = 1500


def one_table_config(qwen: Mapping[str, Any], codec: Mapping[str, Any], audio: Mapping[str, Any], family: Family) -> OneTableConfig:
    """qwen, codec, audio: contents of the three files, in the order of the module's docstring.

    Raises ``CheckpointError`` for rates that cannot be served or a table without room for the tokens, ``KeyError`` and others for contents
    of another form.
    """
    _check_rates(audio, family)
    parts = codec["audio_tokenizer"]
    levels, books = parts["speaker_encoder"]["fsq_levels"], parts["speaker_encoder"]["fsq_num_quantizers"]
    if books != 1:
        raise ValueError(f"fsq_num_quantizers is {books}, and a voice has one token at each place")
    tokens = BiCodecTokens(int(qwen["eos_token_id"]) - PLACE_OF_STOP, math.prod(levels), int(parts["quantizer"]["codebook_size"]))
    if tokens.end > qwen["vocab_size"]:
        raise CheckpointError(
            f"{family.text_directory}/config.json gives vocab_size {qwen['vocab_size']} and eos_token_id {qwen['eos_token_id']}, but with "
            f"the codes of {family.yaml_names[0]} there are {tokens.end} ids; use files that belong together."
        )
    if not qwen.get("tie_word_embeddings", True):
        raise ValueError("tie_word_embeddings is false, and the file has no other head")
    sampling = {"top_p": TOP_P, "top_k": TOP_K, "win_size": 0, "tau_r": 0.0}
    sizes = language_model_config({"speech_token_size": tokens.num_semantic, "sampling": sampling}, qwen, family)
    return OneTableConfig(**{field.name: getattr(sizes, field.name) for field in fields(sizes)}, tokens=tokens)


def _check_rates(audio: Mapping[str, Any], family: Family) -> None:
    served = family.audio_format
    for name, found, wanted in (
        ("sample_rate", audio["sample_rate"], served.sample_rate),
        ("latent_hop_length", audio["latent_hop_length"], served.samples_per_token),
    ):
        if found != wanted:
            raise CheckpointError(
                f"config.yaml has {name} {found}, and only {wanted} can be served; use a checkpoint trained with {wanted}."
            )
