"""The network sizes that the language model's recorded graphs support."""

from __future__ import annotations

from bistream.checkpoints.config import LanguageModelConfig

MOST_SPECIALS = 63  # ids that end a turn: one bit each in an int64 that ``begin_turns`` reads
MOST_SHARE = 16  # query heads per key/value head: rows of the matrix instruction
HEAD_SIZES = (16, 32, 64, 128)
MOST_HIDDEN = 1024  # a chunk of a sum is then 128 columns
UNIT = 16  # of widths: columns of the matrix instruction


def graphs_need(config: LanguageModelConfig) -> tuple[str, ...]:
    """Requirements that these sizes do not meet, as noun phrases; empty for the released models."""
    rules = (
        (config.head_size in HEAD_SIZES, "a head size of 16, 32, 64 or 128"),
        (config.num_attention_heads // config.num_key_value_heads <= MOST_SHARE, "at most 16 query heads per key/value head"),
        (config.hidden_size % UNIT == 0 and config.intermediate_size % UNIT == 0, "widths that are multiples of 16"),
        (config.hidden_size <= MOST_HIDDEN, "a hidden size of at most 1024"),
        (config.rows.num_scored <= MOST_SPECIALS, "at most 63 ids that end a turn"),
    )
    return tuple(text for good, text in rules if not good)
