"""Who asks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from interfaces.core.trace import Trace


@dataclass(frozen=True)
class Caller:
    """key: the name of its API key, None where none are wanted; address: its network address; trace: of this request; secret: of an upload,
    which came along to delete or replace it."""

    key: str | None
    address: str
    trace: Trace = field(default_factory=Trace, compare=False)
    secret: str | None = field(default=None, repr=False, compare=False)

    @property
    def holders(self) -> tuple[str, ...]:
        """Whose shares it takes from."""
        return holders_of(self.key, self.address)


def holders_of(key: str | None, address: str) -> tuple[str, ...]:
    """As of ``Caller.holders``."""
    return (f"address {address}",) if key is None else (f"API key {key}", f"address {address}")


def digest_of(secret: str) -> str:
    """As it is kept of an upload."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
