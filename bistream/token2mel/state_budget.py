"""Number of pages of flow state: as configured, or as the sessions need and memory allows. No torch."""

from __future__ import annotations

from bistream.errors import ConfigError

AUTO_SESSION_S = 30  # audio of one session, prompt included, that the automatic budget has room for
AUTO_MEMORY_SHARE = 0.7  # of free memory; the language model and the networks' working memory share the device


def state_pages(
    budget_mb: int, page_bytes: int, page_s: float, max_sessions: int, free_bytes: int, session_s: float = AUTO_SESSION_S
) -> int:
    """Number of pages for ``flow_state_mb`` = budget_mb; 0 means automatic.

    session_s: audio to hold per session. page_bytes, page_s: memory and audio of one page. free_bytes: free memory.
    Raises ``ConfigError`` when not even one page fits.
    """
    if budget_mb:
        pages = budget_mb * 2**20 // page_bytes
        where = f"Parameter 'flow_state_mb' is {budget_mb}"
    else:
        pages = min(round(max_sessions * session_s / page_s), int(free_bytes * AUTO_MEMORY_SHARE) // page_bytes)
        where = f"There are {free_bytes // 2**20} MiB of free memory, of which flow state may take {AUTO_MEMORY_SHARE:.0%}"
    if pages < 1:
        raise ConfigError(f"{where}; one second of audio needs {-(-page_bytes // 2**20)} MiB, give the server more memory for it.")
    return pages
