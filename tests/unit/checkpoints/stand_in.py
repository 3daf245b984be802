"""A stand-in of both hubs' HTTP interface: listings, files by range, and the faults of a network."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

REPO = "somebody/CosyVoice2-0.5B"
LARGE = 1 << 20  # Hugging Face keeps such files in LFS and gives their SHA-256; of smaller ones it gives git's SHA-1


def commit_of(number: int) -> str:
    return f"{number:040x}"


@dataclass
class Request:
    path: str  # of the file in the repository
    start: int  # first byte asked for
    revision: str


@dataclass
class Repository:
    """What the hub has, and what it does wrong. ``files`` may be changed at any time; then change ``commit`` too."""

    files: dict[str, bytes]
    commit: str = commit_of(1)
    cut_after: dict[str, int] = field(default_factory=dict)  # the connection ends after so many bytes, once
    status: dict[str, int] = field(default_factory=dict)  # answered instead of the file once it has been cut
    corrupt: set[str] = field(default_factory=set)  # delivered with another last byte
    requests: list[Request] = field(default_factory=list)
    listings: int = 0

    def body(self, path: str) -> bytes:
        content = self.files[path]
        return content[:-1] + bytes([content[-1] ^ 1]) if path in self.corrupt else content

    def hugging_face_listing(self) -> dict[str, Any]:
        siblings = []
        for path, content in self.files.items():
            entry: dict[str, Any] = {"rfilename": path, "size": len(content)}
            entry["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            if len(content) >= LARGE:
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        return {"id": REPO, "sha": self.commit, "siblings": siblings}

    def model_scope_listing(self) -> dict[str, Any]:
        files = [
            {"Path": path, "Size": len(content), "Sha256": hashlib.sha256(content).hexdigest(), "Type": "blob", "Revision": self.commit}
            for path, content in self.files.items()
        ]
        folders = sorted({path.split("/")[0] for path in self.files if "/" in path})
        tree = [{"Path": name, "Size": 0, "Sha256": "", "Type": "tree"} for name in folders]
        return {"Code": 200, "Success": True, "Message": "success", "Data": {"Files": tree + files}}


class _Handler(BaseHTTPRequestHandler):
    repository: ClassVar[Repository]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path.startswith(f"/api/models/{REPO}/revision/"):
            self._listing(url.path.rsplit("/", 1)[1], self.repository.hugging_face_listing())
        elif url.path == f"/api/v1/models/{REPO}/repo/files":
            self._listing(query["Revision"], self.repository.model_scope_listing())
        elif match := re.fullmatch(rf"/{REPO}/resolve/([^/]+)/(.+)", url.path):
            self._file(match[2], match[1])
        elif url.path == f"/api/v1/models/{REPO}/repo":
            self._file(query["FilePath"], query["Revision"])
        else:
            self._answer(HTTPStatus.NOT_FOUND, b'{"Code": 404, "Message": "not found"}')

    def _listing(self, revision: str, listing: dict[str, Any]) -> None:
        self.repository.listings += 1
        if revision not in ("main", "master", self.repository.commit):
            self._answer(HTTPStatus.NOT_FOUND, b'{"error": "no such revision"}', {"X-Error-Code": "RevisionNotFound"})
        else:
            self._answer(HTTPStatus.OK, json.dumps(listing).encode(), {"Content-Type": "application/json"})

    def do_HEAD(self) -> None:
        """What huggingface_hub asks before it fetches a file."""
        path = self.path.split("/", 5)[-1]
        content = self.repository.files[path]
        checksum = hashlib.sha256 if len(content) >= LARGE else hashlib.sha1
        self.send_response(HTTPStatus.OK)
        self.send_header("ETag", f'"{checksum(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", self.repository.commit)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()

    def _file(self, path: str, revision: str) -> None:
        repository = self.repository
        match = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        repository.requests.append(Request(path, start, revision))
        cut = repository.cut_after.pop(path, None)
        if cut is None and path in repository.status:
            self._answer(HTTPStatus(repository.status[path]), b"{}")
            return
        body = repository.body(path)[start:]
        headers = {"Content-Range": f"bytes {start}-{start + len(body) - 1}/{start + len(body)}"} if match else {}
        self._answer(HTTPStatus.PARTIAL_CONTENT if match else HTTPStatus.OK, body, headers, cut)

    def _answer(self, status: HTTPStatus, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Silent: the tests read ``Repository.requests``."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is part of the tests."""


@contextmanager
def serving(repository: Repository) -> Iterator[str]:
    """The address of a server that has this repository; it lives as long as the context."""
    handler = type("Handler", (_Handler,), {"repository": repository})
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
