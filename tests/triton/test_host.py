"""What a running server shows to its host: sockets, files, and how it survives more connections than it may have files."""

from __future__ import annotations

import os
import resource
import socket
import stat
import urllib.error
import urllib.request
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
from tests.triton.conftest import PATIENCE_S, wait_for
from tests.triton.keeper import processes_with
from tests.triton.requests import ask
from tests.triton.sockets import is_loopback, listening

SPARE_FILES = 100
CONNECTIONS = 150
MODEL = SPEAKER_EMBEDDING.name


def test_nothing_listens_outside_loopback(server: TritonServer) -> None:
    processes = {server.pid, *(pid for pid in processes_with(str(server.settings.model_repository)) if pid != os.getpid())}
    sockets = listening(processes)
    assert len(sockets) == 3 and all(is_loopback(address) for address, _ in sockets), sockets  # gRPC, HTTP, metrics


def test_other_users_can_read_nothing(server: TritonServer) -> None:
    assert server._claim is not None
    paths = list(SHARED_MEMORY.glob(f"{server._claim.prefix}*"))
    assert len(paths) == 3  # tensors, lock, control
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in paths} == {0}
    log = server.settings.log_path
    assert log is not None and stat.S_IMODE(log.stat().st_mode) & 0o027 == 0


def test_the_command_line_shows_no_key(server: TritonServer) -> None:
    """The key of the restricted requests loads models, that is, runs code; everybody may read a command line."""
    words = Path(f"/proc/{server.pid}/cmdline").read_text(encoding="utf-8").split("\0")
    given = [word for word in words if ADMIN_KEY in word]
    assert len(given) == 2 and server._key not in "".join(words), given
    for key in {word.rpartition("=")[2] for word in given}:
        request = urllib.request.Request(f"http://{server.http_url}/v2/repository/index", method="POST", headers={ADMIN_KEY: key})
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request, timeout=PATIENCE_S)
        refusal.value.close()
        assert refusal.value.code == 403
    with triton.InferenceServerClient(server.grpc_url) as client, pytest.raises(InferenceServerException, match="restricted"):
        client.get_model_repository_index()


def test_a_flood_of_connections_passes(server: TritonServer, reference_wav: NDArray[np.float32]) -> None:
    """The server that has no file left takes the next connection when one of the others has gone."""
    files = open_files(server) + SPARE_FILES
    before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (files, files))
    host, _, port = server.grpc_url.rpartition(":")
    with ExitStack() as stack:
        stack.callback(resource.prlimit, server.pid, resource.RLIMIT_NOFILE, before)
        for _ in range(CONNECTIONS):
            stack.enter_context(socket.create_connection((host, int(port))))
        wait_for(lambda: open_files(server) == files, "the last free file")
    assert ask(server.grpc_url, MODEL, reference_wav=reference_wav).error is None


def open_files(server: TritonServer) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))
