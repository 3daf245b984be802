"""The commands of docs/interfaces.md work as they are written."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from interfaces.options import parse_arguments
from interfaces.settings import Settings
from tests.unit.interfaces.rig import reading, running

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/interfaces.md").read_text(encoding="utf-8")


def test_the_curl_commands_run(tmp_path: Path) -> None:
    (tmp_path / "assets").symlink_to(ROOT / "assets")
    commands = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert len(commands) >= 6
    with reading() as server, running(server.address) as front:
        for command in commands:
            words = ["sh", "-c", command.replace("http://127.0.0.1:8080", front.http)]
            done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, command + done.stderr
            assert '"error"' not in done.stdout, command + done.stdout
    assert (tmp_path / "speech.mp3").read_bytes()[:1] == b"\xff" and (tmp_path / "speech.pcm").stat().st_size > 0


def test_every_option_of_the_page_exists(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--help"])
    page = capsys.readouterr().out
    for option in set(re.findall(r"`(--[a-z-]+)", PAGE)) - {"--entrypoint"}:  # a container engine's
        assert option in page, option


def test_the_defaults_of_the_command_line_are_those_of_the_settings() -> None:
    assert parse_arguments([], {}) == Settings()
