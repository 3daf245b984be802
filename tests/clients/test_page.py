"""The page in a real browser: what the worklet has played, what was heard at an interruption, and a recording's way to the server.

Needs Chromium (``apt-get install --no-install-recommends chromium``) beside the packages of requirements/sdk.txt.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.conftest import found_by
from tests.unit.client.fake_server import SAMPLES_PER_CHARACTER
from tests.unit.interfaces.rig import reading, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/usr/bin/chromium").exists(), reason="apt-get install --no-install-recommends chromium"),
]


def test_the_page_speaks_stops_and_records(tmp_path: Path) -> None:
    with reading() as server, running(server.address) as front:
        picture = tmp_path / "page.png"
        found = found_by("sdk", "tests/clients/programs/page.py", f"127.0.0.1:{front.port}", str(picture))
        (voice,) = [one for one in front.service.voices.all_of(None) if one.name == "mine"]
    played = len("A text that is sent all at once, and played without a gap.") * SAMPLES_PER_CHARACTER
    assert found["whole"] == {"played": played, "gaps": 0, "isMade": True, "isOver": True}
    assert found["heard"].startswith("Heard: One word") and found["unheard"]
    assert voice.samples is not None and 0.8 < len(voice.samples) / 16000 < 3 and abs(voice.samples).max() > 0.1
    assert found["chosen"] == "mine" and found["download"] == "bistream.wav" and found["phone_width"] == 375
    assert found["faults"] == [] and picture.stat().st_size > 10_000
