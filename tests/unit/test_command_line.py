"""The command ``bistream`` as a shell runs it: beside a pipe that nobody reads to its end, and with Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bistream.commands import doctor
from bistream.commands.main import main
from tests.unit.gateway.rig import GateRig

RUN = "import sys; from bistream.commands.main import main; raise SystemExit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def rig() -> Iterator[GateRig]:
    with GateRig() as made:
        yield made


@pytest.mark.parametrize("words", [["info", "--server"], ["help"]], ids=lambda words: words[0])
def test_a_pipe_that_nobody_reads_ends_the_command_without_a_word(words: list[str], rig: GateRig) -> None:
    server = [rig.grpc_url] if words[-1] == "--server" else []
    with subprocess.Popen([sys.executable, "-c", RUN, *words, *server], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None and command.stderr is not None
        command.stdout.close()  # long before the command has imported what it prints with
        said = command.stderr.read()
    assert (command.returncode, said) == (1, b"")


@pytest.fixture
def heard_sigint() -> Iterator[None]:
    """A shell that starts the tests in the background makes them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard_sigint")
def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "run", lambda options: signal.raise_signal(signal.SIGINT))
    assert main(["doctor", "models/any"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"
