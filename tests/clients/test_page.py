"""The page in a real browser: what the worklet has played, what was heard at an interruption, and a recording's way to the server.

Needs Chromium (``apt-get install --no-install-recommends chromium``) beside the packages of requirements/sdk.txt.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from gateway.keys import Keys
from interfaces.settings import Settings
from tests.clients.conftest import found_by
from tests.unit.client.fake_server import SAMPLES_PER_CHARACTER
from tests.unit.interfaces.rig import reading, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/usr/bin/chromium").exists(), reason="apt-get install --no-install-recommends chromium"),
]


def test_the_page_speaks_stops_and_records(tmp_path: Path) -> None:
    with reading() as server, running(server.address) as front:
        found = found_by("sdk", "tests/clients/programs/page.py", f"127.0.0.1:{front.port}", str(tmp_path))
        (voice,) = [one for one in front.service.voices.all_of(None) if one.name == "mine"]
    last = [one.inputs for one in server.received if one.flag("is_start") and "target_text" in one.inputs][-1]
    assert (last["text_type"], last["lexicon"]) == (b"ssml", b'{"word": "woord", "SQL": "sequel"}')
    text = "A text that is sent all at once, and played without a gap."
    whole = {"played": len(text) * SAMPLES_PER_CHARACTER, "gaps": 0, "isMade": True, "isOver": True, "words": len(text.split())}
    assert found["whole"] == whole and found["lit"] == whole["words"]
    assert "no text" in found["empty"] and found["empty_after"] == ""
    assert found["heard"].startswith("Heard: One word") and found["unheard"] and found["history"] == 2
    assert voice.samples is not None and 0.8 < len(voice.samples) / 16000 < 3 and abs(voice.samples).max() > 0.1
    assert found["chosen"] == "mine" and found["download"] == "bistream.wav" and found["phone_width"] == 375
    assert found["faults"] == [] and (tmp_path / "page.png").stat().st_size > 10_000
    _check_programs(*found["snippets"])


def _check_programs(curl: str, python: str, javascript: str, livekit: str, ours: str) -> None:
    assert subprocess.run(["bash", "-n"], input=curl, text=True, check=False).returncode == 0
    assert subprocess.run(["node", "--check", "--input-type=module", "-"], input=javascript, text=True, check=False).returncode == 0
    for program in (python, livekit, ours):
        ast.parse(program)


def test_each_trouble_has_its_own_words_which_go_with_it() -> None:
    key, settings = "9Yv/0XcQ+T2m7w==", Settings(port=0, allowed_hosts=("speech.example",))
    with reading() as server, running(server.address, keys=Keys({key: "somebody"}), settings=settings) as front:
        said = found_by("sdk", "tests/clients/programs/page_troubles.py", f"127.0.0.1:{front.port}", key)
    sentences = [said[name] for name in ("no_key", "wrong_key", "gone")]
    assert all(sentences) and len(set(sentences)) == 3
    assert said["spoken"] == "" and "https" in said["insecure"]
    assert said["right_key"] == said["back"] == "" and said["voices"] == said["voices_after_reload"] == 1 and said["faults"] == []
