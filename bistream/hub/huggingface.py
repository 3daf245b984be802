"""Hugging Face through ``huggingface_hub``. The endpoint is HF_ENDPOINT where that is set, a token comes from HF_TOKEN.

Files are fetched with the library's ``http_get``, which continues a file that is partly there: its ``hf_hub_download`` removes
what it has when it fails (huggingface_hub 2.4.0, file_download.py: ``_download_to_tmp_and_move``), and the files here take minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bistream.hub import failures
from bistream.hub.listing import DownloadError, Listing, RemoteFile

PUBLIC_ENDPOINT = "https://huggingface.co"
LISTING_TIMEOUT_S = 60.0
CHUNK_BYTES = 1 << 20  # The library writes whole chunks (10 MB by default), so a connection that always ends sooner would never go on.


class HuggingFace:
    """A ``Hub``."""

    name = "huggingface"

    def __init__(self) -> None:
        self.endpoint = os.environ.get("HF_ENDPOINT", PUBLIC_ENDPOINT).rstrip("/")

    def list_files(self, repo_id: str, revision: str) -> Listing:
        from huggingface_hub import HfApi  # noqa: PLC0415  (only installed where something is downloaded)

        with self._translated(repo_id, revision):
            info = HfApi(endpoint=self.endpoint).model_info(repo_id, revision=revision, files_metadata=True, timeout=LISTING_TIMEOUT_S)
        files = tuple(
            RemoteFile(
                path=sibling.rfilename,
                size=int(sibling.lfs.size if sibling.lfs else sibling.size or 0),
                sha256=sibling.lfs.sha256 if sibling.lfs else None,
                git_sha1=None if sibling.lfs else sibling.blob_id,
            )
            for sibling in info.siblings or ()
        )
        return Listing(self.name, repo_id, revision, info.sha or revision, files)

    def fetch(self, listing: Listing, file: RemoteFile, scratch: Path) -> Path:
        from huggingface_hub import constants, hf_hub_url  # noqa: PLC0415
        from huggingface_hub.file_download import http_get  # noqa: PLC0415
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # noqa: PLC0415  (in its __all__ by text only)

        constants.DOWNLOAD_CHUNK_SIZE = CHUNK_BYTES
        part = scratch / f"{file.content_id}.part"
        url = hf_hub_url(listing.repo_id, file.path, revision=listing.commit, endpoint=self.endpoint)
        with self._translated(listing.repo_id, listing.revision), part.open("ab") as stream:
            if stream.tell() > file.size:
                stream.truncate(0)
            http_get(
                url,
                stream,
                resume_size=stream.tell(),
                headers=build_hf_headers(),
                expected_size=file.size,
                displayed_filename=file.path,
            )
        return part

    @contextmanager
    def _translated(self, repo_id: str, revision: str) -> Iterator[None]:
        """The library's exceptions as ``DownloadError``; a full disk as the ``OSError`` that it is."""
        import httpx2  # noqa: PLC0415  (the HTTP client of huggingface_hub)
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled  # noqa: PLC0415

        try:
            yield
        except HFValidationError:
            raise DownloadError(f"{repo_id!r} is not the id of a model; it looks like FunAudioLLM/CosyVoice2-0.5B.") from None
        except HfHubHTTPError as error:
            raise failures.refused(self.endpoint, error.response.status_code, repo_id, revision, "HF_TOKEN") from error
        except (httpx2.TransportError, OfflineModeIsEnabled) as error:
            raise failures.unreachable(self.endpoint, error) from error
        except OSError as error:
            if failures.disk_full(error) is not None:
                raise
            raise failures.unreachable(self.endpoint, error) from error  # the library: a body that ended too early
