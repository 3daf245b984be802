"""Sizes of a torch engine, derived from ``RuntimeConfig``; read by scheduler and step runner."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bistream.checkpoints.config import LanguageModelConfig
from bistream.config import RuntimeConfig
from bistream.errors import ConfigError
from bistream.text2token.segments import most_positions

LARGEST_BLOCK = 64  # positions of a block of the KV cache, in any tier
FEEDING_SHARE = 4  # one row in this many is reserved for feeding when there are more decoding sequences than rows


@dataclass(frozen=True)
class EngineSettings:
    """Sizes of an engine.

    max_ahead_s: audio that a listener may have before its sequence is held, see ``urgency``. idle_pause: see ``Scheduler.is_idle``.
    knows_texts: the step runner is told at which positions of a sequence there is text (``text_reading``).
    """

    max_sessions: int
    max_rows: int
    kv_cache_tokens: int
    block_size: int = 16
    max_sequence_ids: int = 32768
    max_ahead_s: float = math.inf
    idle_pause: float = RuntimeConfig.idle_pause
    knows_texts: bool = False

    def __post_init__(self) -> None:
        if self.max_rows < FEEDING_SHARE:
            raise ConfigError(f"Parameter 'max_rows' is {self.max_rows}; set it to {FEEDING_SHARE} or more.")
        if self.kv_cache_tokens < self.block_size:
            raise ConfigError(f"Parameter 'kv_cache_tokens' is {self.kv_cache_tokens}; set it to {self.block_size} or more.")

    @property
    def num_blocks(self) -> int:
        return self.kv_cache_tokens // self.block_size

    @property
    def longest_sequence(self) -> int:
        """The most ids of one sequence that the cache and the model's positions allow."""
        return min(self.max_sequence_ids, self.num_blocks * self.block_size)

    @property
    def blocks_per_sequence(self) -> int:
        return -(-self.longest_sequence // self.block_size)


def room_for_all(config: RuntimeConfig, session_tokens: int, block_size: int = LARGEST_BLOCK) -> int:
    """Positions of a cache in which every session has ``session_tokens``, or ``max_session_tokens`` if that is less, in whole blocks."""
    return config.max_sessions * -(-min(session_tokens, config.max_session_tokens) // block_size) * block_size


def with_cache(config: RuntimeConfig, longest_utterance_s: float, tokens_per_second: int) -> RuntimeConfig:
    """``config`` with the ``kv_cache_tokens`` that its sessions need, where it gives none.

    longest_utterance_s: of a checkpoint's training. A session without a prompt needs most, for its speech leaves less for new speech;
    or one with the longest reference, where that is longer than the utterances.
    """
    room = round(max(longest_utterance_s, config.max_reference_s) * tokens_per_second)
    return replace(config, kv_cache_tokens=config.kv_cache_tokens or room_for_all(config, most_positions(room)))


def settings_of(config: RuntimeConfig, sizes: LanguageModelConfig, block_size: int = EngineSettings.block_size) -> EngineSettings:
    """The settings that ``config`` asks for. Raises ``ConfigError`` for sizes that cannot work."""
    return EngineSettings(
        max_sessions=config.max_sessions,
        max_rows=config.max_rows,
        kv_cache_tokens=config.kv_cache_tokens or room_for_all(config, config.max_session_tokens, block_size),
        block_size=block_size,
        max_ahead_s=config.max_unread_audio_s,
        idle_pause=config.idle_pause,
        max_sequence_ids=min(sizes.max_position_embeddings, config.max_session_tokens),
    )
