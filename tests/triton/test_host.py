"""What a running server shows to its host: files, a command line, and how it survives more connections than it may have files."""

from __future__ import annotations

import os
import resource
import socket
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from bistream.contract.fields import SPEAKER_EMBEDDING
from bistream.keeper.host import SHARED_MEMORY
from bistream.keeper.model_control import ADMIN_KEY
from bistream.keeper.server_process import TritonServer
from bistream.keeper.server_start import start_server
from tests.triton.conftest import PATIENCE_S, PROBE_TIMEOUT_S, make_repository, server_settings, wait_for
from tests.triton.requests import ask

SPARE_FILES = 100
CONNECTIONS = 150
MODEL = SPEAKER_EMBEDDING.name


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("host")
    server = start_server(server_settings(make_repository(folder, tiny_model_dir, [MODEL]), folder / "server.log"), PROBE_TIMEOUT_S)
    try:
        yield server
    finally:
        server.stop()


def test_other_users_can_read_nothing(small_server: TritonServer) -> None:
    assert small_server._claim is not None
    paths = list(SHARED_MEMORY.glob(f"{small_server._claim.prefix}*"))
    assert len(paths) == 3  # tensors, lock, control
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in paths} == {0}
    log = small_server.settings.log_path
    assert log is not None and stat.S_IMODE(log.stat().st_mode) & 0o027 == 0


def test_the_command_line_shows_no_key(small_server: TritonServer) -> None:
    """The key of the restricted requests loads models, that is, runs code; everybody may read a command line."""
    words = Path(f"/proc/{small_server.pid}/cmdline").read_text(encoding="utf-8").split("\0")
    given = [word for word in words if ADMIN_KEY in word]
    assert len(given) == 2 and small_server._key not in "".join(words), given
    for key in {word.rpartition("=")[2] for word in given}:
        request = urllib.request.Request(f"http://{small_server.http_url}/v2/repository/index", method="POST", headers={ADMIN_KEY: key})
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request, timeout=PATIENCE_S)
        refusal.value.close()
        assert refusal.value.code == 403
    with triton.InferenceServerClient(small_server.grpc_url) as client, pytest.raises(InferenceServerException, match="restricted"):
        client.get_model_repository_index()


def test_a_flood_of_connections_passes(small_server: TritonServer, reference_wav: NDArray[np.float32]) -> None:
    """The server that has no file left takes the next connection when one of the others has gone."""
    files = open_files(small_server) + SPARE_FILES
    resource.prlimit(small_server.pid, resource.RLIMIT_NOFILE, (files, files))
    host, _, port = small_server.grpc_url.rpartition(":")
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(socket.create_connection((host, int(port))))
        wait_for(lambda: open_files(small_server) == files, "the last free file")
    assert ask(small_server.grpc_url, MODEL, reference_wav=reference_wav).error is None


def open_files(server: TritonServer) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))
