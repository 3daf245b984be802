"""Ownership of the pages of flow state. Integers only: no tensor, no torch.

A page holds the state of one 25-token chunk. Pages belong to an *account* (one session) or to a *prefix* (the prompt of
one voice, shared read-only by its sessions). An account is admitted with a reservation that it can always draw, so a
session never lacks what it was promised; beyond the reservation it is lent pages while any are available.

    total = free + held by accounts + held by prefixes
    promised = sum over accounts of max(0, reserve - held) <= free + pages of idle prefixes

Prefixes that no session uses stay as a cache and are dropped, least recently used first, when their pages are needed.
Not thread-safe: one thread owns a pool.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from bistream.errors import BusyError

ZERO_PAGE = 0  # all zeros: padding of page tables, and the state before the start of a sequence
SCRATCH_PAGE = 1  # takes state that is not kept; never read
FIRST_PAGE = 2  # first page that can be owned


@dataclass(eq=False)
class Prefix:
    """State of the complete chunks of one voice's prompt. ``ready`` once the pages hold it; so far that of ``computed`` chunks."""

    key: bytes
    pages: tuple[int, ...]
    users: int = 0
    computed: int = 0
    ready: bool = False


@dataclass(eq=False)
class Account:
    """Pages of one session, oldest chunk first, and its reservation."""

    reserve: int
    prefix: Prefix | None
    pages: list[int] = field(default_factory=list)
    closed: bool = False

    @property
    def promised(self) -> int:
        return 0 if self.closed else max(0, self.reserve - len(self.pages))

    @property
    def lent(self) -> int:
        """Pages beyond the reservation."""
        return max(0, len(self.pages) - self.reserve)


class PagePool:
    """Pages ``FIRST_PAGE`` ... ``FIRST_PAGE + total - 1``."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(FIRST_PAGE + total - 1, FIRST_PAGE - 1, -1))
        self._prefixes: OrderedDict[bytes, Prefix] = OrderedDict()  # least recently opened first
        self._accounts: set[Account] = set()
        # Maintained incrementally: every session of a batch reads them, and hundreds of sessions may be open.
        self._promised_pages = 0
        self._idle_pages = 0  # of prefixes that no session uses

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def promised_pages(self) -> int:
        """What live sessions are sure of and have not drawn."""
        return self._promised_pages

    @property
    def available(self) -> int:
        """Unpromised pages: free ones and those of idle prefixes, less the promises."""
        return len(self._free) + self._idle_pages - self._promised_pages

    def open(self, reserve: int, prefix_key: bytes, prefix_pages: int) -> Account:
        """Admit a session: a reservation of ``reserve`` pages, and the prefix of its voice (shared if resident).

        Raises ``BusyError``, changing nothing, when that cannot be guaranteed now.
        """
        prefix = self._prefixes.get(prefix_key) if prefix_pages else None
        if self.shortage(reserve, prefix_key, prefix_pages) > 0:
            raise BusyError(
                f"The flow has no room for another session of {reserve} pages ({max(0, self.available)} are free); "
                "try again later or raise flow_state_mb."
            )
        if prefix is not None:
            self._idle_pages -= 0 if prefix.users else len(prefix.pages)
            prefix.users += 1
            self._prefixes.move_to_end(prefix_key)
        elif prefix_pages:
            prefix = Prefix(prefix_key, tuple(self._draw(prefix_pages)), users=1)
            self._prefixes[prefix_key] = prefix
        account = Account(reserve, prefix)
        self._accounts.add(account)
        self._promised_pages += account.promised
        return account

    def shortage(self, reserve: int, prefix_key: bytes, prefix_pages: int) -> int:
        """Pages that other sessions would have to give back before ``open`` admits such a session; 0 or less: none."""
        prefix = self._prefixes.get(prefix_key) if prefix_pages else None
        # an unknown prefix's pages must be taken, an idle one's can no longer be evicted
        unshared = prefix_pages if prefix is None or not prefix.users else 0
        return reserve + unshared - self.available

    def take(self, account: Account, count: int) -> list[int]:
        """Draw up to ``count`` more pages; fewer only beyond the account's reservation."""
        assert not account.closed
        promised = min(count, account.promised)
        granted = promised + max(0, min(count - promised, self.available))
        pages = self._draw(granted)
        self._promised_pages -= promised
        account.pages.extend(pages)
        return pages

    def give_back(self, account: Account, pages: Sequence[int]) -> None:
        """Return pages that the account no longer reads."""
        before = account.promised
        for page in pages:
            account.pages.remove(page)
            self._free.append(page)
        self._promised_pages += account.promised - before

    def close(self, account: Account) -> None:
        """Free what the account holds. Idempotent."""
        if account.closed:
            return
        self.give_back(account, tuple(account.pages))
        self._promised_pages -= account.promised
        account.closed = True
        self._accounts.remove(account)
        prefix = account.prefix
        if prefix is not None:
            prefix.users -= 1
            self._idle_pages += 0 if prefix.users else len(prefix.pages)
            if not prefix.users and not prefix.ready:  # never computed: useless as a cache
                self._drop(prefix)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless every page has exactly one owner and every promise can be kept."""
        prefixes = list(self._prefixes.values())
        owned = [page for account in self._accounts for page in account.pages]
        owned += [page for prefix in prefixes for page in prefix.pages]
        pages = sorted(self._free + owned)
        assert pages == list(range(FIRST_PAGE, FIRST_PAGE + self.total)), "a page is lost or has two owners"
        for prefix in prefixes:
            users = sum(account.prefix is prefix for account in self._accounts)
            assert prefix.users == users, "a prefix miscounts its users"
            assert users or prefix.ready, "a prefix that was never computed was kept"
        assert self._promised_pages == sum(account.promised for account in self._accounts), "promises are miscounted"
        assert self._idle_pages == sum(len(prefix.pages) for prefix in prefixes if not prefix.users), "idle prefixes are miscounted"
        assert self.available >= 0, "more pages are promised than exist"

    def _drop(self, prefix: Prefix) -> None:
        """Evict a prefix that no session uses."""
        del self._prefixes[prefix.key]
        self._idle_pages -= len(prefix.pages)
        self._free.extend(prefix.pages)

    def _draw(self, count: int) -> list[int]:
        while len(self._free) < count:
            self._drop(next(prefix for prefix in self._prefixes.values() if not prefix.users))
        return [self._free.pop() for _ in range(count)]
