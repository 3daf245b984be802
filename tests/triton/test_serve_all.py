"""``scripts/serve_all.py``: a real server and the interfaces before it. The death of one costs nothing of the other."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.ports import ports
from tests.triton.callers import Caller
from tests.triton.conftest import PATIENCE_S, ROOT, START_TIMEOUT_S, make_repository, wait_for
from tests.triton.keeper import Keeper, processes_with, shared_memory_of
from tests.triton.reliability import Attack

REFERENCE = (str(ROOT / "assets/reference.wav"), (ROOT / "assets/reference.txt").read_text(encoding="utf-8").strip())


class Both(Keeper):
    """As ``Keeper``: its ready file is the server's, its children are the server's keeper and the interfaces."""

    def __init__(self, repository: Path) -> None:
        grpc, http_port, metrics_port, self.port = ports(4)
        words = ["--grpc-port", str(grpc), "--http-port", str(http_port), "--metrics-port", str(metrics_port), "--interfaces"]
        words += ["--port", str(self.port), "--server", f"127.0.0.1:{grpc}", "--recording", "reference", *REFERENCE]
        super().__init__(repository, *words, program=(str(ROOT / "scripts/serve_all.py"),))
        self._command.remove("--free-ports")

    def __enter__(self) -> Both:
        super().__enter__()
        return self

    @property
    def command(self) -> list[str]:
        return self._command

    @property
    def server(self) -> int:
        return self.child("scripts/serve.py")

    @property
    def interfaces(self) -> int:
        return self.child("-m\0interfaces")

    def ask(self, method: str, path: str, body: Any = None) -> int:
        """The status; 0 while nobody listens."""
        with (
            contextlib.suppress(OSError),
            contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)) as one,
        ):
            one.request(method, path, None if body is None else json.dumps(body))
            answer = one.getresponse()
            answer.read()
            return answer.status
        return 0

    def speaks(self) -> bool:
        return (
            self.ask("POST", "/v1/audio/speech", {"model": "m", "input": "Here it is.", "voice": "reference", "response_format": "pcm"})
            == 200
        )


@pytest.mark.attack(
    "`serve-all`: SIGKILL of the interfaces during a session at the gate, then of the server's keeper",
    must="the session has all its audio; each part is restarted alone, and texts are spoken through both again",
)
def test_the_death_of_one_leaves_the_other_as_it_is(tmp_path: Path, brief_model_dir: Path, voice: dict[str, Any], attack: Attack) -> None:
    with Both(make_repository(tmp_path, brief_model_dir)) as both:
        wait_for(both.speaks, "speech through the interfaces")
        server, interfaces = both.server, both.interfaces

        # The interfaces die during a session at the gate.
        caller = Caller(both.grpc_url, voice)
        caller.wait_audio()
        os.kill(interfaces, signal.SIGKILL)
        wait_for(lambda: both.interfaces != interfaces and both.ask("GET", "/") == 200, "the page of the next interfaces")
        caller.say("The end.")
        assert caller.wait_end(PATIENCE_S) and caller.outcome == "audio"
        attack.got([caller.outcome])
        caller.close()
        wait_for(both.speaks, "speech through the next interfaces")
        assert both.server == server

        # The keeper of the server dies, and the server with it.
        interfaces = both.interfaces
        os.kill(server, signal.SIGKILL)
        wait_for(lambda: both.server != server and both.is_announced(), "the next server", START_TIMEOUT_S)
        wait_for(both.speaks, "speech by the next server")
        attack.processes = "each replaced once, alone"
        assert both.interfaces == interfaces
        assert both.ask("GET", "/") == 200

        # The interfaces drain before the server, which still takes their sessions.
        servers = (server, both.server)
        both.signal()
        both.check_end()
        assert [shared_memory_of(pid) for pid in servers] == [[], []]


def test_a_port_in_use_ends_both_with_its_sentence(tmp_path: Path, tiny_model_dir: Path) -> None:
    """That of the interfaces, who find it while the server loads its model."""
    repository = make_repository(tmp_path, tiny_model_dir, ["speaker_embedding"])
    both = Both(repository)
    with socket.create_server(("127.0.0.1", both.port)):
        done = subprocess.run(both.command, stderr=subprocess.PIPE, text=True, timeout=START_TIMEOUT_S, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("serve_all.py: interfaces ended with exit code 1: interfaces: ") and str(both.port) in last
    assert processes_with(str(repository)) == []
