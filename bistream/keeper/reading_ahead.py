"""What the golden utterance's check needs of files and host, found out while the server loads its models: it takes seconds.

The checksums of a checkpoint that is new here (a whole read of its weights), and the hardware (``nvidia-smi``). Used by ``golden_check``.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bistream.errors import BistreamError
from bistream.keeper.golden_facts import Parameters, checkpoint, checkpoint_files, hardware
from bistream.keeper.golden_store import GoldenStore
from bistream.keeper.host import GoldenError


class ReadingAhead:
    """``begin`` with each start of a server; then ``hardware`` and ``check_archives`` once. Both work without ``begin`` as well."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._hardware: Callable[[], str] = hardware
        self._archives: Callable[[], bool] | None = None

    def begin(self, parameters: Parameters, state_dir: Path) -> None:
        """parameters: as ``golden_facts.read_parameters`` has them."""
        pool = ThreadPoolExecutor(2, thread_name_prefix="reading-ahead")
        self._hardware = pool.submit(hardware).result
        self._archives = pool.submit(_check_if_new, parameters, state_dir).result
        pool.shutdown(wait=False)

    def hardware(self) -> str:
        found, self._hardware = self._hardware, hardware
        return found()

    def check_archives(self, paths: Sequence[Path]) -> None:
        """Raises ``GoldenError``, as the function of this name."""
        found, self._archives = self._archives, None
        if found is None or not found():
            check_archives(paths)


def _check_if_new(parameters: Parameters, state_dir: Path) -> bool:
    """Whether the checksums were compared: not where a golden utterance is stored already."""
    try:
        if GoldenStore(state_dir, checkpoint(parameters)).folder.is_dir():
            return False
    except BistreamError:  # a file is missing; the server says so
        return False
    check_archives(checkpoint_files(parameters))
    return True


def check_archives(paths: Sequence[Path]) -> None:
    """Read the weights of a checkpoint once before its first utterance becomes the one to compare with. Raises ``GoldenError``."""
    for path in paths:
        if not zipfile.is_zipfile(path):
            continue
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise GoldenError(f"{path.name} is damaged ({damaged} does not match its checksum); download it again.")
