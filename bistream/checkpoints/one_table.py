"""Sizes of a language model that has one table of text and speech tokens: a plain Qwen2.5 with a tied head.

Three files say them: the model's ``config.json``, the audio tokenizer's yaml (codes) and ``config.yaml`` (rates). Called by
``reader.read_config``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

from bistream.checkpoints.config import LanguageModelConfig
from bistream.checkpoints.sizes import language_model_config
from bistream.errors import CheckpointError, ConfigError
from bistream.families.bicodec_tokens import PLACE_OF_STOP, BiCodecTokens
from bistream.families.family import Family

RELEASED = BiCodecTokens(first=151_643, num_global=4096, num_semantic=8192)
# Upstream's generate() in cli/SparkTTS.py.
TEMPERATURE, TOP_K, TOP_P = 0.8, 50, 0.95


@dataclass(frozen=True)
class OneTableConfig(LanguageModelConfig):
    """Made by ``of``. table_size: rows of the table, those of no token included.

    Speech is rows of it, too. Behind the table they have second names, so that whatever counts in speech tokens (``TokenSpace``) need not
    know where they are: first what describes a voice (``voice_rows``), then the semantic tokens and the id that ends them. Those of a
    voice count as text here; where a voice is made, they are the speech tokens (``of_voices``).

    longest_sequence: positions of a text and its speech; training dropped longer ones (SparkVox, prepare_train.py).
    makes_voices: see above.
    """

    table_size: int = 0
    tokens: BiCodecTokens = RELEASED
    longest_sequence: int = 1500
    makes_voices: bool = False

    @classmethod
    def of(cls, qwen: Mapping[str, Any], tokens: BiCodecTokens, family: Family) -> OneTableConfig:
        """qwen: the content of the model's ``config.json``."""
        sampling = {"top_p": TOP_P, "top_k": TOP_K, "win_size": 0, "tau_r": 0.0}  # no rule against repetition
        sizes = language_model_config({"speech_token_size": tokens.num_semantic, "sampling": sampling}, qwen, family)
        made = cls(**{one.name: getattr(sizes, one.name) for one in fields(sizes)}, tokens=tokens, table_size=sizes.text_vocab_size)
        return replace(made, text_vocab_size=made.table_size + sum(map(len, made.voice_rows)), temperature=TEMPERATURE)

    @property
    def voice_rows(self) -> tuple[range, range, range]:
        """Rows of the table that a voice is described with: pitch, speed and global tokens."""
        return self.tokens.ids("pitch_value"), self.tokens.ids("speed_value"), self.tokens.ids("bicodec_global")

    @property
    def of_voices(self) -> OneTableConfig:
        """The same model where it makes voices: their tokens are its speech."""
        return replace(self, text_vocab_size=self.table_size, speech_token_size=sum(map(len, self.voice_rows)), makes_voices=True)

    @property
    def voice_phases(self) -> tuple[range, ...]:
        """Places in ``voice_rows`` by the number of the id that a voice has so far: pitch, speed, then global tokens."""
        ends = list(accumulate(map(len, self.voice_rows)))
        return tuple(range(end - len(rows), end) for rows, end in zip(self.voice_rows, ends, strict=True))


def check_dtype(dtype: str) -> None:
    """Raises ``ConfigError`` for the precision whose range is too small for this model."""
    if dtype == "float16":
        raise ConfigError("Parameter 'dtype' is float16, in which this model's scores become NaN; set it to auto, bfloat16 or float32.")


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
    return OneTableConfig.of(qwen, tokens, family)


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
