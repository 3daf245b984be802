"""``bistream health`` and ``info`` against a gate."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from bistream.commands.main import COMMANDS, main
from tests.unit.gateway.rig import GateRig

MODELS = ("cosyvoice2_bistream", "cosyvoice2")


@pytest.fixture(scope="module")
def rig() -> Iterator[GateRig]:
    with GateRig() as made:
        yield made


@pytest.fixture
def server(rig: GateRig) -> list[str]:
    return ["--server", rig.grpc_url]


def test_health_of_a_server_and_its_models(server: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", *server, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == dict.fromkeys(("live", "ready", *MODELS), True)
    assert main(["health", *server]) == 0
    assert capsys.readouterr().out.count("yes") == 4


def test_info_names_the_server_and_its_tensors(server: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", *server, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["models"]) == set(MODELS) and found["server"]["name"]
    assert found["model_family"] == "cosyvoice2"
    assert found["languages"] == ["de", "en"] and found["can_be_instructed"] is False
    assert found["sample_rate"] == 24_000
    assert main(["info", *server]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in MODELS)
    assert "languages: de, en\n" in text and "takes instructions: no\n" in text
    assert "has room for 96 sessions at a time, and remembers at least 7 s of the speech of each\n" in text


def test_the_command_lists_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in COMMANDS)
    assert main([]) == 2
    capsys.readouterr()
    assert main(["sing"]) == 2
    assert "sing" in capsys.readouterr().err
    assert main(["--version"]) == 0
