"""The gate is replaced alone when it dies or hangs, drained on request, ended at the end, and told of the models. Its process and time are
scripted, but where a test starts ``python -m gateway``."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from bistream.keeper.gate import HANG_TIMEOUT_S, UNREADY_AFTER_S, KeptGate, fit_limits
from bistream.keeper.host import ServerError
from bistream.keeper.member_group import LOOK_INTERVAL_S, MemberPlan
from bistream.keeper.served_models import CLOSING_S
from bistream.keeper.server_process import Interrupted, never
from gateway.settings import GateLimits, GateSettings, Listen, UpstreamSettings
from scripts.make_model_repo import read_template
from scripts.serve import gate_settings, parse_arguments, server_settings
from tests.ports import ports
from tests.unit.client.fake_server import Speakers
from tests.unit.gateway.rig import FakeTriton
from tests.unit.keeper.test_server_group import World

NAME = "the gate"
SETTINGS = GateSettings(grpc=Listen(port=5001), http=Listen(port=5000), drain_timeout_s=7.0)


@dataclass
class House(World):
    """A gate that says ``answer`` of itself, and whose loop turns while ``is_beating``."""

    answer: bool = True
    is_beating: bool = True
    commands: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate = KeptGate(SETTINGS, self.spawn, self.pause, lambda: self.now)

    def spawn(self, plan: MemberPlan) -> Any:
        self.commands.append(list(plan.command))
        started = super().spawn(plan)
        if plan.name not in self.broken:
            self._write()
        return started

    def pause(self, seconds: float) -> None:
        if self.is_beating and self._ready_file.exists():
            self._write()
        super().pause(seconds)

    def _write(self) -> None:
        self._ready_file.write_text(json.dumps({"ready": self.answer}), encoding="utf-8")
        os.utime(self._ready_file, (self.now + 1.0, self.now + 1.0))

    @property
    def _ready_file(self) -> Path:
        return Path(self.commands[-1][self.commands[-1].index("--ready-file") + 1])

    def set(self, **values: Any) -> Callable[[], None]:
        return lambda: self.__dict__.update(values)

    def fall_silent(self) -> None:
        """No heartbeat, and signals do not end it."""
        self.is_beating, self.process.ends_at = False, 10**6

    @property
    def process(self) -> Any:
        return self.started[NAME][-1]

    def run(self, until_s: float) -> list[bool]:
        """Whether the gate was ready, at each pause until it is asked to end."""
        seen: list[bool] = []
        pause = self.pause

        def look(seconds: float) -> None:
            seen.append(self.gate.is_ready)
            pause(seconds)

        self.gate._pause = look
        self.at(until_s, self.gate.drain)
        self.gate.run()
        return seen


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    with made.gate._folder:
        yield made


def test_readiness_is_the_gates_own_word(house: House) -> None:
    house.answer = False
    house.at(5.0, house.set(answer=True))
    house.at(15.0, house.set(answer=False))
    ready = house.run(20.0)
    assert [ready[int(seconds / LOOK_INTERVAL_S)] for seconds in (2.0, 7.0, 18.0)] == [False, True, False]


def test_a_gate_that_dies_is_started_again_with_its_ports(house: House, caplog: pytest.LogCaptureFixture) -> None:
    for number, code in enumerate((-9, 0, 1)):
        house.at(10.0 * (number + 1), house.end(NAME, code))
    house.run(50.0)
    assert len(house.commands) == 4 and all(command == house.commands[0] for command in house.commands)
    assert "killed by signal 9; starting it again in 0.0 s" in caplog.text and house.process.code == 0


def test_a_gate_whose_loop_stands_still_takes_no_sessions_and_is_replaced(house: House) -> None:
    house.at(10.0, house.fall_silent)
    house.at(10.0 + UNREADY_AFTER_S + 1.0, lambda: unready.append(house.gate.is_ready))
    house.at(10.0 + HANG_TIMEOUT_S - 1.0, lambda: living.append(house.process.code))
    house.at(10.0 + HANG_TIMEOUT_S + 1.0, lambda: house.set(is_beating=True)())
    unready: list[bool] = []
    living: list[int | None] = []
    ready = house.run(10.0 + HANG_TIMEOUT_S + 5.0)
    assert (unready, living) == ([False], [None])
    assert [process.code for process in house.started[NAME]] == [-9, 0] and ready[int((10.0 + HANG_TIMEOUT_S + 3.0) / LOOK_INTERVAL_S)]


def test_a_machine_that_stands_still_is_no_loss(house: House) -> None:
    house.is_beating = False
    for number in range(6):
        house.at(1.0 + 100.0 * number, lambda: house.set(now=house.now + 99.0)())
    house.run(602.0)
    assert len(house.commands) == 1


@pytest.mark.parametrize("code", [0, -9])
def test_a_drain_asks_once_and_no_other_gate_follows(house: House, code: int) -> None:
    house.ends_at = 10**6
    house.at(12.0, house.end(NAME, code))
    assert not house.run(10.0)[-1]
    assert house.process.signals == 1 and len(house.commands) == 1


def test_a_drain_without_end_is_ended(house: House) -> None:
    house.ends_at = 10**6
    house.run(10.0)
    assert house.process.code == -9 and house.now == pytest.approx(10.0 + SETTINGS.drain_timeout_s + CLOSING_S, abs=1.0)


# Its real process


@pytest.fixture
def server() -> Iterator[FakeTriton]:
    made = FakeTriton(Speakers())
    yield made
    made.stop()


def settings(server: FakeTriton, **options: Any) -> GateSettings:
    grpc, http = ports(2)
    return GateSettings(UpstreamSettings(server.address, poll_interval_s=0.05), grpc=Listen(port=grpc), http=Listen(port=http), **options)


def test_a_reason_not_to_start_is_one_sentence(server: FakeTriton) -> None:
    made = settings(server)
    with socket.create_server(("127.0.0.1", made.grpc.port)):
        reason = f"^the gate ended with exit code 1: gateway: gRPC port {made.grpc.port} .*; choose another one.$"
        with pytest.raises(ServerError, match=reason), KeptGate(made).opened(never):
            pytest.fail("it is not open")


def test_it_is_said_where_temporary_files_have_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ServerError, match="TMPDIR"):
        KeptGate(SETTINGS)


def test_a_start_can_be_interrupted(server: FakeTriton) -> None:
    gate = KeptGate(settings(server))
    with pytest.raises(Interrupted), gate.opened(lambda: True):
        pytest.fail("it is not open")
    assert gate.has_ended and gate._member.pid is None


# What it is told of the models, and what the command line of serve.py makes of it


@settings_of_hypothesis(max_examples=5)
@given(st.integers(0, 10**7))
def test_the_longest_text_of_the_repository_passes_the_gate_which_knows_its_rate(max_text_chars: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "cosyvoice2_bistream" / "config.pbtxt"
        config.parent.mkdir()
        text = read_template("cosyvoice2_bistream").replace("${max_text_chars}", str(max_text_chars))
        text = text.replace("${session_idle_timeout_s}", "120.0").replace("${max_unread_audio_s}", "15")
        config.write_text(text.replace("${sample_rate}", "16000"), encoding="utf-8")
        longest = len("\U0001f600".encode()) * max_text_chars
        limits = fit_limits(GateLimits(), Path(folder))
        assert limits.max_text_bytes == max(GateLimits.max_text_bytes, longest) and limits.sample_rate == 16_000
        assert (limits.max_silence_s, limits.max_unread_audio_s) == (120.0, GateLimits.max_unread_audio_s)
        assert fit_limits(GateLimits(max_text_bytes=17), Path(folder)).max_text_bytes == 17  # somebody wanted it so


def test_serve_gives_the_gate_the_public_addresses_and_the_server_loopback(tmp_path: Path) -> None:
    arguments = ["--model-repository", str(tmp_path), "--grpc-address", "0.0.0.0", "--http-port", "5000", "--drain-timeout-s", "9"]
    options = parse_arguments([*arguments, "--keys-file", "keys", "--sessions-per-address", "0", "--starts-per-second", "1.5"])
    server = server_settings(options)
    gate = gate_settings(options, server)
    assert server.ports is not None
    assert (server.grpc_address, server.http_address, server.ports.metrics) == ("127.0.0.1", "127.0.0.1", 8002)
    assert gate.upstream.address == f"127.0.0.1:{server.ports.grpc}" and gate.drain_timeout_s == 9.0
    assert gate.keys_file == Path("keys")
    assert (gate.grpc, gate.http) == (Listen("0.0.0.0", 8001), Listen("127.0.0.1", 5000))
    assert gate.limits == GateLimits(sessions_per_address=0, starts_per_second=1.5)


def test_serve_without_a_gate_is_as_asked_and_accepts_no_option_of_the_gate(capsys: pytest.CaptureFixture[str]) -> None:
    server = server_settings(parse_arguments(["--direct", "--grpc-address", "0.0.0.0"]))
    assert server.ports is not None and (server.grpc_address, server.ports.grpc, server.ports.http) == ("0.0.0.0", 8001, 8000)
    for option in (["--keys-file", "x"], ["--tls-certificate", "c", "--tls-key", "k"], ["--max-sessions", "5"]):
        with pytest.raises(SystemExit):
            parse_arguments(["--direct", *option])
        assert "--direct serves without it" in capsys.readouterr().err
