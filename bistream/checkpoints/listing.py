"""Which files a checkpoint has. Pure."""

from __future__ import annotations

from collections.abc import Collection

from bistream.checkpoints.files import family_of_names
from bistream.families.registry import FAMILIES

OPTIONAL = ("spk2info.pt", "README.md", "LICENSE")


class DownloadError(Exception):
    """The checkpoint could not be downloaded or is not what was downloaded; one sentence that says what to do."""


def missing_files(paths: set[str]) -> list[str]:
    """The first name of every required file that is not among ``paths``, which tell the family."""
    return [names[0] for names in family_of_names(paths).required_files if not paths & set(names)]


def checkpoint_files(paths: Collection[str], repo_id: str) -> list[str]:
    """Those of a repository's files that the server reads. Raises ``DownloadError`` where one is not there."""
    if missing := missing_files(set(paths)):
        served = " or ".join(family.title for family in FAMILIES)
        raise DownloadError(f"{repo_id} has no {missing[0]}, so it is no checkpoint of {served}; name another repository or revision.")
    wanted = {name for names in family_of_names(set(paths)).required_files for name in names}
    return sorted(wanted.union(OPTIONAL).intersection(paths))
