"""State of one session of the flow. No torch: the contents of its pages are in ``pages.FlowPages``."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from bistream.token2mel.page_pool import Account, PagePool
from bistream.types import VoicePrompt


class FlowStatus(enum.Enum):
    OPEN = "open"  # takes hops
    FINISHED = "finished"  # had its final hop
    FAILED = "failed"  # computing failed; its state is freed
    CLOSED = "closed"


@dataclass(eq=False)
class FlowState:
    """One session. ``committed`` is a multiple of the chunk and never exceeds what was computed.

    tokens: all known tokens, the prompt's first, without those that ``HopPlanner.reanchor`` made it forget: all numbers here count so.
    committed: tokens whose state is in ``pages``.
    emitted_frames: frames handed out or belonging to the prompt, from the start of the prompt.
    pages: page of each stored chunk up to ``committed``, oldest first (the prefix's pages, then the session's own).
    is_computing: a hop that contains the session is in progress: its pages must stay as they are, and it must not be closed.
    has_forgotten: memory was short, so chunks between the prefix and the session's oldest page are missing.
    """

    prompt: VoicePrompt
    account: Account
    pool: PagePool
    tokens: list[int]
    emitted_frames: int
    committed: int = 0
    pages: list[int] = field(default_factory=list)
    status: FlowStatus = FlowStatus.OPEN
    failure: str | None = None
    has_forgotten: bool = False
    is_computing: bool = False

    def close(self) -> None:
        """Free the session's pages. Idempotent."""
        assert not self.is_computing, "a hop that contains the session is in progress"
        self.status = FlowStatus.CLOSED
        self.release()

    def fail(self, sentence: str) -> None:
        """Computing failed: free the pages; every further hop is an ``EngineError`` with this sentence."""
        self.status = FlowStatus.FAILED
        self.failure = sentence
        self.release()

    def release(self) -> None:
        """Free the pages and keep the status (a finished or failed session needs none)."""
        self.pages = []
        self.pool.close(self.account)
