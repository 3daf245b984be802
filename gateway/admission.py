"""Who may do how much: live sessions, new sessions per second, and calls, per API key and per address. Decisions only, no waiting."""

from __future__ import annotations

import ipaddress
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from bistream.errors import BusyError
from gateway.settings import GateLimits

MAX_BUCKETS = 10_000  # beyond it, those that are full again are forgotten


@dataclass(frozen=True, slots=True)
class Caller:
    """Where a request comes from. key: the name of its API key; ``None`` where the gate asks for none."""

    address: str
    key: str | None = None

    @property
    def holder(self) -> str:
        """Who is counted for its calls and their bytes."""
        return f"address {self.address}" if self.key is None else f"key {self.key}"

    @property
    def holders(self) -> tuple[str, ...]:
        """Who is counted for its sessions."""
        address = f"address {self.address}"
        return (address,) if self.key is None else (f"key {self.key}", address)


def host_of(host: str) -> str:
    """An address as it is counted: an IPv6 network of 64 bits is one host. What is no IP address is returned as it is."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host[:64] or "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour  # who has an IPv4 address has 65,536 networks of 6to4
        if inner is not None:
            return str(inner)
        return str(ipaddress.ip_network((address, 64), strict=False).network_address)
    return str(address)


@dataclass(slots=True)
class _Bucket:
    """A token bucket. tokens: those that were there at ``filled_at``."""

    tokens: float
    filled_at: float


class Admission:
    """Counts of one gate. Every ``open_`` that returned must be followed by its ``close_``, with the same caller."""

    def __init__(self, limits: GateLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._sessions: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._buckets: dict[str, _Bucket] = {}
        self.sessions = 0
        self.calls = 0

    def open_call(self, caller: Caller) -> None:
        """Raises ``BusyError``."""
        limit = self._limits.streams_per_address
        if self.calls >= self._limits.max_streams:
            raise BusyError("All streams of the gate are taken; try again later.")
        if limit and self._calls[caller.holder] >= limit:
            whose = "address" if caller.key is None else "API key"
            raise BusyError(f"Your {whose} has {limit} streams open; close some, or try again later.")
        self._calls[caller.holder] += 1
        self.calls += 1

    def close_call(self, caller: Caller) -> None:
        self.calls -= 1
        _release(self._calls, caller.holder)

    def open_session(self, caller: Caller) -> None:
        """Raises ``BusyError``; what is refused is not counted."""
        limits = self._limits
        if self.sessions >= limits.max_sessions:
            raise BusyError(f"All {limits.max_sessions} sessions of the gate are taken; try again later.")
        for holder in caller.holders:
            limit = limits.sessions_per_key if holder.startswith("key ") else limits.sessions_per_address
            if limit and self._sessions[holder] >= limit:
                whose = "API key" if holder.startswith("key ") else "address"
                raise BusyError(f"Your {whose} has {limit} sessions, which is its limit; end one, or try again later.")
        self._take_start(caller)
        for holder in caller.holders:
            self._sessions[holder] += 1
        self.sessions += 1

    def close_session(self, caller: Caller) -> None:
        self.sessions -= 1
        for holder in caller.holders:
            _release(self._sessions, holder)

    def _take_start(self, caller: Caller) -> None:
        rate, burst = self._limits.starts_per_second, self._limits.start_burst
        if not rate:
            return
        now = self._clock()
        buckets = [self._bucket(holder, now) for holder in caller.holders]
        for bucket in buckets:
            bucket.tokens = min(float(burst), bucket.tokens + rate * (now - bucket.filled_at))
            bucket.filled_at = now
        if any(bucket.tokens < 1.0 for bucket in buckets):
            raise BusyError(f"More than {rate:g} sessions per second were started from here; try again in a second.")
        for bucket in buckets:
            bucket.tokens -= 1.0

    def _bucket(self, holder: str, now: float) -> _Bucket:
        bucket = self._buckets.get(holder)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                self._forget_full(now)
            bucket = self._buckets[holder] = _Bucket(float(self._limits.start_burst), now)
        return bucket

    def _forget_full(self, now: float) -> None:
        """A full bucket says nothing; one that is not full is less than ``burst / rate`` seconds old."""
        rate, burst = self._limits.starts_per_second, self._limits.start_burst
        self._buckets = {name: bucket for name, bucket in self._buckets.items() if bucket.tokens + rate * (now - bucket.filled_at) < burst}


def _release(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]
