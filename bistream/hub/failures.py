"""Sentences for what can go wrong with a download, the same for both hubs."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from bistream.hub.listing import DownloadError

HAVE_IT = "set MODEL_DIR to a checkpoint that you have (MODEL_DIR=/path/to/CosyVoice2-0.5B or /path/to/Fun-CosyVoice3-0.5B-2512)"
# EFBIG: a limit of the process or of the file system on the size of one file.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that led to it: libraries wrap what the system told them."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def disk_full(error: BaseException) -> OSError | None:
    """The error of the system that says that the disk is full, if that is the reason."""
    return next((one for one in chain(error) if isinstance(one, OSError) and one.errno in DISK_FULL), None)


def unreachable(endpoint: str, error: BaseException) -> DownloadError:
    origin = list(chain(error))[-1]  # what the system said, without what the libraries made of it
    reason = " ".join(str(origin).split())[:160] or type(origin).__name__
    return DownloadError(
        f"{endpoint} could not be reached ({reason}); run the same command again when this machine has a network "
        f"(it continues where it stopped), or {HAVE_IT}."
    )


def refused(endpoint: str, status: int, repo_id: str, revision: str, token_variable: str) -> DownloadError:
    """status: HTTP status of the hub's answer."""
    if status in (401, 403):
        return DownloadError(
            f"{endpoint} does not let this machine read {repo_id} (HTTP {status}); correct the name, set {token_variable} to a token that "
            f"may read it, or {HAVE_IT}."
        )
    if status == 404:
        return DownloadError(f"{endpoint} has no {repo_id} at revision {revision} (HTTP 404); correct the name or the revision.")
    return DownloadError(
        f"{endpoint} answered with HTTP {status}; run the same command again later (it continues where it stopped), or {HAVE_IT}."
    )


def wrong_checksum(path: str, endpoint: str) -> DownloadError:
    return DownloadError(
        f"{path} arrived with another checksum than {endpoint} gives for it and was removed; run the same command again, and if that "
        "does not help name another --revision."
    )
