"""ModelScope through ``modelscope_hub``, the client library of the ``modelscope`` package without its pipelines.

The endpoint is MODELSCOPE_ENDPOINT where that is set, a token comes from MODELSCOPE_API_TOKEN.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bistream.hub import failures
from bistream.hub.listing import DownloadError, Listing, RemoteFile

if TYPE_CHECKING:
    from modelscope_hub import HubApi

PUBLIC_ENDPOINT = "https://www.modelscope.cn"
LIBRARY_FOLDER = "modelscope"


class ModelScope:
    """A ``Hub``. It gives a SHA-256 for every file but no commit of a branch: the checksums of the listing pin the contents."""

    name = "modelscope"

    def __init__(self) -> None:
        self.endpoint = os.environ.get("MODELSCOPE_ENDPOINT", PUBLIC_ENDPOINT).rstrip("/")

    def _api(self) -> HubApi:
        from modelscope_hub import HubApi  # noqa: PLC0415  (only installed where something is downloaded)

        return HubApi(endpoint=self.endpoint)

    def list_files(self, repo_id: str, revision: str) -> Listing:
        with self._translated(repo_id, revision):
            found = self._api().list_repo_files(repo_id, "model", revision=revision)
        files = tuple(RemoteFile(one.path, int(one.size or 0), sha256=one.sha256 or None) for one in found if one.type != "tree")
        return Listing(self.name, repo_id, revision, revision, files)

    def fetch(self, listing: Listing, file: RemoteFile, scratch: Path) -> Path:
        folder = scratch / LIBRARY_FOLDER  # the library keeps its part files and locks here
        with self._translated(listing.repo_id, listing.revision, file, folder):
            return self._api().download_file(
                listing.repo_id,
                "model",
                file.path,
                revision=listing.commit,
                cache_dir=folder / "cache",
                local_dir=folder / file.content_id,
                expected_sha256=file.sha256,
                file_size=file.size,
            )

    @contextmanager
    def _translated(self, repo_id: str, revision: str, file: RemoteFile | None = None, folder: Path | None = None) -> Iterator[None]:
        """The library's exceptions as ``DownloadError``; a full disk as the ``OSError`` that it is."""
        from modelscope_hub.errors import APIError, FileIntegrityError, HubError  # noqa: PLC0415
        from requests import RequestException  # noqa: PLC0415

        try:
            yield
        except FileIntegrityError as error:
            if file is not None and folder is not None:
                shutil.rmtree(folder / file.content_id, ignore_errors=True)
            raise failures.wrong_checksum(file.path if file else repo_id, self.endpoint) from error
        except APIError as error:
            raise failures.refused(self.endpoint, error.status_code or 0, repo_id, revision, "MODELSCOPE_API_TOKEN") from error
        except (HubError, RequestException) as error:
            if (full := failures.disk_full(error)) is not None:
                raise full from error
            raise failures.unreachable(self.endpoint, error) from error
        except ValueError as error:  # the library checks the form of the id
            raise DownloadError(f"{repo_id!r} is not the id of a model; it looks like iic/CosyVoice2-0.5B.") from error
