"""``scripts/serve_gpus.py``: two real servers behind Envoy. Sessions are spread; one that drains or dies costs no more than it must."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from bistream.client.client import BistreamClient
from bistream.errors import EngineError
from gateway.upstream import LOST
from tests.ports import ports
from tests.triton.callers import BROKEN, Caller
from tests.triton.conftest import PATIENCE_S, PROBE_TIMEOUT_S, ROOT, TRITON_BACKENDS, TRITON_SERVER, make_repository, wait_for
from tests.triton.keeper import processes_with
from tests.triton.sockets import parents

logger = logging.getLogger(__name__)

SERVERS = 2
MOST_DRAWS = 12  # of a server for a session, until it is the wanted one: each misses with a probability of 3/4 at most, mostly 1/4
START_TIMEOUT_S = 900.0  # of two servers at once; decides nothing
END_TIMEOUT_S = 900.0  # of a session, on a busy machine
LONG = "3600"  # seconds; no test waits for it
Voice = dict[str, Any]


class Group:
    """A context manager around ``serve_gpus.py`` with two ready servers, which it ends at exit if it still runs."""

    def __init__(self, repository: Path) -> None:
        self._folder = repository.parent
        self._ready, self._log = self._folder / "ready.json", self._folder / "group.log"
        grpc, http, admin, self.health_port, self.first_port, *_ = ports(4 + 10 * SERVERS)
        self.url, self._admin_url = f"127.0.0.1:{grpc}", f"http://127.0.0.1:{admin}"
        numbers = {"grpc": grpc, "http": http, "admin": admin, "first": self.first_port, "health": self.health_port}
        self._command = [sys.executable, str(ROOT / "scripts/serve_gpus.py"), "--servers", str(SERVERS)]
        self._command += ["--model-repository", str(repository), "--ready-file", str(self._ready), "--log-folder", str(self._folder)]
        self._command += [word for name, number in numbers.items() for word in (f"--{name}-port", str(number))]
        self._command += [
            "--", "--no-golden", "--tritonserver", str(TRITON_SERVER), "--backend-directory", str(TRITON_BACKENDS), "--drain-timeout-s",
            LONG, "--max-silence-s", LONG, "--probe-timeout-s", str(PROBE_TIMEOUT_S),
        ]  # fmt: skip

    def __enter__(self) -> Group:
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(self._command, stderr=log)
        try:
            self.await_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def await_all(self) -> None:
        """Until every server takes sessions, and Envoy knows it."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(self.ready()) < SERVERS or any(self.is_avoided(number) for number in range(SERVERS)):
            assert self._process.poll() is None and time.monotonic() < deadline, self._log.read_text(encoding="utf-8")
            time.sleep(0.05)

    def ready(self) -> list[str]:
        """Names of the servers that take sessions."""
        try:
            return str(json.loads(self._ready.read_text(encoding="utf-8"))["servers"]).split(", ")
        except (OSError, ValueError):
            return []

    def keeper(self, number: int) -> int:
        """The process of a server that has been ready."""
        return int(re.findall(rf"server {number} is process (\d+)", self._log.read_text(encoding="utf-8"))[-1])

    @property
    def envoy(self) -> int:
        """Its process; 0 while there is none."""
        parent_of = parents()
        return next((pid for pid in processes_with("--disable-hot-restart") if parent_of.get(pid) == self._process.pid), 0)

    def live(self) -> list[int]:
        """Sessions of each server; -1 for one that does not answer."""
        return [self._live(self.first_port + 10 * number) for number in range(SERVERS)]

    def _live(self, port: int) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as page:
                return int(float(re.findall(r"^bistream_gate_open_sessions (\S+)$", page.read().decode(), re.MULTILINE)[0]))
        except OSError:
            return -1

    def is_avoided(self, number: int) -> bool:
        """Whether Envoy sends it no new sessions."""
        try:
            with urllib.request.urlopen(f"{self._admin_url}/clusters", timeout=PATIENCE_S) as page:
                clusters = page.read().decode()
        except OSError:  # Envoy starts
            return True
        address = f"127.0.0.1:{self.first_port + 10 * number + 1}"
        return re.findall(rf"^grpc::{address}::health_flags::(.*)$", clusters, re.MULTILINE) != ["healthy"]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/v2/health/ready", timeout=PATIENCE_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def signal(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def check_end(self) -> None:
        """It ends by itself, with code 0, and leaves nothing behind."""
        assert self._process.wait(END_TIMEOUT_S) == 0
        wait_for(lambda: processes_with(str(self._folder)) == [], "the end of what it has started")
        assert not self._ready.exists()
        assert "Traceback" not in self._log.read_text(encoding="utf-8")

    def __exit__(self, *exception: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def group(tmp_path: Path, brief_model_dir: Path) -> Iterator[Group]:
    repository = make_repository(tmp_path, brief_model_dir, None, **{"max_sessions": "32", "cosyvoice2_bistream.max_sessions": "16"})
    with Group(repository) as made:
        yield made


def begin(group: Group, voice: Voice, count: int = 1) -> list[Caller]:
    """Sessions that have heard audio and have more to say, each begun after the one before. The second server is never lost."""
    callers = []
    for _ in range(count):
        wait_for(lambda: not group.is_avoided(1), "Envoy to have an answer of a keeper on a busy machine")
        callers.append(Caller(group.url, voice))
        callers[-1].wait_audio()
    return callers


def begin_everywhere(group: Group, voice: Voice) -> list[Caller]:
    """At least one session on each server: Envoy takes the better of two drawn at random."""
    callers: list[Caller] = []
    while min(group.live()) < 1:
        assert len(callers) < MOST_DRAWS, "one server gets no session"
        callers += begin(group, voice)
    return callers


def finish(callers: list[Caller]) -> list[str]:
    """What ended each: all its audio, one error or the end of its stream.

    A stream may end after its session: a gate that drains ends it then, and one that is killed may have told an error before.
    """
    for caller in callers:
        with contextlib.suppress(InferenceServerException):  # a stream that has ended takes no text, and its caller knows why
            if not caller.codes:
                caller.say("The end.")
    for caller in callers:
        assert caller.wait_end(END_TIMEOUT_S), "a session goes on for ever"
        caller.close()
    assert max(len([code for code in caller.codes if code != BROKEN]) for caller in callers) <= 1, "told twice"
    return [caller.ending for caller in callers]


def lost_session(group: Group, voice: Voice) -> str:
    """What our own client says of a session on the first server, which is killed."""
    client = BistreamClient(group.url, silence_timeout_s=PATIENCE_S)
    with contextlib.ExitStack() as stack:  # those on the other server stay open, which makes it the less likely one to be drawn
        for _ in range(MOST_DRAWS):
            before = group.live()[0]
            given = {"reference_wav": voice["reference_wav"][0], "reference_text": voice["reference_text"]}
            session = stack.enter_context(client.start(**given))
            session.push_text("The first words are spoken. ")
            next(iter(session))
            if group.live()[0] > before:
                break
        else:
            raise AssertionError("no session on the first server")
        os.kill(group.keeper(0), signal.SIGKILL)
        killed_at = time.monotonic()
        with pytest.raises((ConnectionError, EngineError)) as lost:
            for _ in session:
                pass
        logger.info("told %.3f s after the kill", time.monotonic() - killed_at)
        return getattr(lost.value, "sentence", str(lost.value))


def test_sessions_are_spread_and_a_server_that_drains_or_dies_loses_no_others(group: Group, voice: Voice) -> None:
    callers = begin_everywhere(group, voice)
    wait_for(group.is_ready, "readiness")

    # One drains under load: new sessions go to the other, and its own end well. Then it has a successor.
    first = group.keeper(0)
    os.kill(first, signal.SIGTERM)
    wait_for(lambda: group.is_avoided(0), "Envoy to notice the drain")
    draining, other = group.live()
    callers += begin(group, voice)
    assert group.live() == [draining, other + 1]
    wait_for(lambda: group.ready() == ["server 1"] and group.is_ready(), "the group to notice the drain")
    assert set(finish(callers)) == {"audio"}
    wait_for(lambda: group.keeper(0) != first, "its successor", START_TIMEOUT_S)
    group.await_all()

    # Envoy is killed: it alone is started again, on its ports.
    envoy, keepers = group.envoy, [group.keeper(number) for number in range(SERVERS)]
    os.kill(envoy, signal.SIGKILL)
    wait_for(lambda: group.envoy not in (0, envoy), "the next Envoy")
    group.await_all()
    assert finish(begin(group, voice)) == ["audio"]
    assert [group.keeper(number) for number in range(SERVERS)] == keepers
    wait_for(lambda: group.live() == [0, 0], "the ended sessions to be gone")

    # One is killed: each of its sessions has one clear error, the others go on, and new ones begin at once.
    callers = begin_everywhere(group, voice)
    lost = group.live()[0]
    sentence = lost_session(group, voice)
    # Server and gate die at the same moment: the gate may still say it, or the stream just breaks.
    assert sentence in (LOST, f"The server that spoke this session was lost behind {group.url}; start the session again.")
    callers += begin(group, voice)
    outcomes = finish(callers)
    assert sum(outcomes.count(told) for told in (BROKEN, EngineError.code)) == lost, outcomes
    assert outcomes.count("audio") == len(callers) - lost, outcomes

    # The end, while the successor starts: all drain.
    callers = begin(group, voice, 2)
    group.signal()
    wait_for(lambda: not group.is_ready(), "the drain")
    assert finish(callers) == ["audio", "audio"]
    group.check_end()
