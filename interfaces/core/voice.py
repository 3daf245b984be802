"""A voice by name, as clients ask for it."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from interfaces.core.caller import Caller, digest_of, holders_of

RECORDING, UPLOAD = "recording", "upload"  # kinds beside those of ``ListedVoice``


@dataclass(frozen=True)
class Voice:
    """samples: float32 [N], 16 kHz mono, with what is said in them; or speaker_id, a voice of the servers.

    Of uploads: owner, the key that may delete it and alone may use it (None: everybody may use it); secret_digest, of the secret with which
    one without an owner can be deleted; address, from which it came. secret: only of what ``VoiceStore.add`` returns.
    """

    id: str
    name: str
    samples: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)
    transcript: str | None = field(default=None, repr=False)
    speaker_id: str | None = None
    owner: str | None = None
    created_at: int = 0
    kind: str = RECORDING
    secret_digest: str = field(default="", repr=False)
    address: str = field(default="", repr=False)
    secret: str | None = field(default=None, repr=False, compare=False)

    def is_of(self, caller: Caller) -> bool:
        """Whether the caller may delete or replace this upload."""
        if self.owner is not None:
            return self.owner == caller.key
        given = digest_of(caller.secret or "")
        return caller.secret is not None and hmac.compare_digest(self.secret_digest, given)

    def is_held_by(self, holder: str) -> bool:
        """As of ``Caller.holders``."""
        return holder in holders_of(self.owner, self.address)
