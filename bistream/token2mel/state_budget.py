"""Number of pages of flow state: as configured, or as the sessions need and memory allows. No torch."""

from __future__ import annotations

import math

from bistream.checkpoints.config import LanguageModelConfig
from bistream.errors import ConfigError

AUTO_SESSION_S = 30  # audio of one session, prompt included, that the automatic budget has room for
AUTO_MEMORY_SHARE = 0.7  # of available memory; working memory of the networks and what else runs there take the rest
CACHE_BYTES, LOADING_BYTES = 2, 4  # of a number in the KV cache, and of a weight while it is converted


def language_model_bytes(sizes: LanguageModelConfig, kv_cache_tokens: int) -> int:
    """Memory that the language model takes on its device: KV cache (two tensors per layer) and weights; 0 without a cache there."""
    if not kv_cache_tokens:
        return 0
    key_width = sizes.num_key_value_heads * sizes.head_size
    cache = 2 * sizes.num_hidden_layers * key_width * kv_cache_tokens * CACHE_BYTES
    layer = sizes.hidden_size * (2 * sizes.hidden_size + 2 * key_width + 3 * sizes.intermediate_size)
    tables = sizes.hidden_size * (sizes.text_vocab_size + 2 * sizes.speech_token_size)
    return cache + LOADING_BYTES * (sizes.num_hidden_layers * layer + tables)


def available_bytes(free_bytes: int, total_bytes: int, claimed_bytes: int) -> int:
    """Memory of a device that is free and not claimed by a model that may not have taken it yet.

    Models load in any order: where the claim has been taken, ``free_bytes`` already excludes it.
    """
    return max(0, min(free_bytes, total_bytes - claimed_bytes))


def unshared_session_s(max_sessions: int, longest_s: float) -> float:
    """Audio to hold per session in a process that shares its memory with no server: as for a server's, and in all no less than one session
    of ``longest_s`` needs, so that an utterance alone never forgets its beginning."""
    return max(AUTO_SESSION_S, longest_s / max_sessions)


def reserved_pages(speech_s: float | None, usual: int, page_s: float) -> int:
    """Pages that a session is sure of: those of its expected speech, where that is known and less than usual; one at least.

    With none a session for which no page is left would compute all of its speech again in each hop.
    """
    return usual if speech_s is None else min(usual, max(1, math.ceil(speech_s / page_s)))


def shortage(pages: int, reserve: int, page_s: float, max_sessions: int) -> str | None:
    """A sentence for the log where fewer sessions than ``max_sessions`` find their reservation of ``reserve`` pages."""
    sessions = pages // reserve
    if sessions >= max_sessions:
        return None
    return (
        f"The flow state has room for {sessions} sessions at a time that reserve {reserve * page_s:g} s of speech each, and "
        f"max_sessions is {max_sessions}: starts beyond that get BUSY. A lower max_sessions leaves the flow memory of the KV cache; or set "
        "left_context_chunks, or raise flow_state_mb."
    )


def state_pages(
    budget_mb: int, page_bytes: int, page_s: float, max_sessions: int, available: int, session_s: float = AUTO_SESSION_S
) -> int:
    """Number of pages for ``flow_state_mb`` = budget_mb; 0 means automatic.

    session_s: audio to hold per session. page_bytes, page_s: memory and audio of one page. available: bytes of memory.
    Raises ``ConfigError`` when not even one page fits.
    """
    if budget_mb:
        pages = budget_mb * 2**20 // page_bytes
        where = f"Parameter 'flow_state_mb' is {budget_mb}"
    else:
        pages = min(round(max_sessions * session_s / page_s), int(available * AUTO_MEMORY_SHARE) // page_bytes)
        where = f"There are {available // 2**20} MiB of available memory, of which flow state may take {AUTO_MEMORY_SHARE:.0%}"
    if pages < 1:
        raise ConfigError(f"{where}; one second of audio needs {-(-page_bytes // 2**20)} MiB, give the server more memory for it.")
    return pages
