"""The command line client: exit codes, the WAV, the summary. A gRPC server in this process answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from bistream.client import say
from bistream.client.audio import WavWriter
from bistream.client.say import main, split_pieces
from tests.unit.client.fake_server import FakeServer, Received, Serve, Speaker, Stream

ROOT = Path(__file__).parents[3]


@pytest.fixture
def server(serve: Serve) -> FakeServer:
    return serve(Speaker())


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.wav"


def run(server: FakeServer, output: Path, *arguments: str) -> int:
    return main(["--server", server.address, "--output", str(output), "--quiet", *arguments])


def summary(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


def test_a_text_becomes_a_wav(server: FakeServer, output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(server, output, "--text", "Hello there.", "--speaker-id", "anna", "--json", "--seed", "3") == 0
    assert soundfile.info(output).frames == 2400
    result = summary(capsys)
    assert (result["audio_s"], result["error"], len(result["chunks"])) == (0.1, None, 1)
    assert result["time_to_first_audio_s"] <= result["wall_s"]
    assert not result["audio_began_before_text_ended"]
    (request,) = server.received
    assert request.inputs["target_text"] == b"Hello there."
    assert request.inputs["seed"].tolist() == [[3]]


def test_a_text_at_a_rate_goes_in_pieces(server: FakeServer, output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--text", "one two \u4f60\u597d.", "--text-rate", "1000", "--speaker-id", "anna", "--json"]
    assert run(server, output, *arguments) == 0
    pieces = [request.inputs["target_text"].decode() for request in server.received]
    assert pieces == ["", "one ", "two ", "\u4f60", "\u597d", ".", ""]
    assert soundfile.info(output).frames == 5 * 2400
    assert summary(capsys)["text_ended_s"] is not None


def test_standard_input_is_passed_on_as_it_arrives(server: FakeServer, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as stdin, os.fdopen(write_end, "wb") as pipe:
        monkeypatch.setattr(sys, "stdin", stdin)
        pipe.write("from a language model \u4f60".encode()[:-1])
        pipe.close()
        assert run(server, output, "--stdin", "--speaker-id", "anna") == 0
    assert b"".join(request.inputs["target_text"] for request in server.received) == "from a language model \u4f60".encode()[:-1]
    assert server.received[-1].flag("is_end")


def test_a_recording_goes_along(server: FakeServer, output: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "voice.wav", np.zeros(48000), 48000)
    arguments = ["--text", "Hi.", "--reference-audio", str(tmp_path / "voice.wav"), "--reference-text", "What is said."]
    assert run(server, output, *arguments) == 0
    (request,) = server.received
    assert request.inputs["reference_wav"].shape == (1, 16000)
    assert request.inputs["reference_text"] == b"What is said."


def test_a_speed_goes_with_text_in_pieces(server: FakeServer, output: Path) -> None:
    assert run(server, output, "--text", "Hi you.", "--text-rate", "1000", "--speaker-id", "anna", "--speed", "1.5") == 0
    start, *pieces = server.received
    assert start.inputs["speed"].item() == 1.5 and not start.flag("is_end") and pieces


@pytest.mark.parametrize(
    "given",
    [
        {"speaker_id": "anna", "instruct_text": "\u7528\u56db\u5ddd\u8bdd\u8bf4"},
        {"gender": "female", "pitch": "high", "speaking_rate": "very_low"},
    ],
    ids=["manner", "labels"],
)
def test_voice_and_manner_go_along(server: FakeServer, output: Path, given: dict[str, str]) -> None:
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    assert run(server, output, "--text", "Hi.", "--cross-lingual", "--marked", *words) == 0
    (request,) = server.received
    assert {name: request.inputs[name].decode() for name in given} == given
    assert request.flag("is_cross_lingual") and request.flag("is_marked") and "speed" not in request.inputs


def test_an_error_of_the_server_is_exit_code_1(serve: Serve, output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(request: Received, stream: Stream) -> None:
        stream.error(request.id, "BUSY: All 4 sessions are taken; try again later. [session s]")

    assert run(serve(refuse), output, "--text", "Hi.", "--speaker-id", "anna", "--json") == 1
    captured = capsys.readouterr()
    assert captured.err == "error: BUSY: All 4 sessions are taken; try again later.\n"
    assert json.loads(captured.out)["error"].startswith("BUSY")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--text", "a", "--stdin"],
        ["--stdin", "--text-rate", "5"],
        ["--text", "a", "--text-rate", "0"],
        ["--text", "a", "--speaker-id", "b", "--instruct-text", " "],
        ["--text", "a", "--reference-audio", "voice.wav", "--reference-text", ""],
        ["--text", "a", "--reference-text", "words"],
        ["--text", "a", "--speaker-id", "b", "--reference-audio", "v.wav", "--reference-text", "w"],
        ["--text", "a", "--gender", "neutral"],
        ["--text", "a", "--pitch", "high"],
        ["--text", "a", "--gender", "male", "--speaking-rate", "1.5"],
        ["--text", "a", "--gender", "male", "--speaker-id", "b"],
        ["--text", "a", "--gender", "male", "--reference-audio", "v.wav"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_no_server_is_exit_code_3(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--server", "127.0.0.1:1", "--output", str(output), "--text", "a", "--speaker-id", "b"]) == 3
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert not output.exists()


def test_an_interrupt_cancels_and_leaves_a_playable_file(
    server: FakeServer, output: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(WavWriter):
        def write(self, waveform: np.ndarray[Any, np.dtype[np.float32]]) -> None:
            super().write(waveform)
            if len(waveform):
                raise KeyboardInterrupt

    monkeypatch.setattr(say, "open_output", lambda name, _: Interrupted(name))
    # A text that never ends: a pipe without a writer.
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as stdin, os.fdopen(write_end, "wb") as pipe:
        monkeypatch.setattr(sys, "stdin", stdin)
        pipe.write(b"one")
        pipe.flush()
        assert run(server, output, "--stdin", "--speaker-id", "anna", "--json") == 130
    assert summary(capsys)["error"] == "interrupted"
    assert soundfile.info(output).frames == 2400
    assert server.stream_gone.wait(240)


@given(st.text(max_size=40))
def test_pieces_joined_are_the_text(text: str) -> None:
    pieces = split_pieces(text)
    assert "".join(pieces) == text
    assert "" not in pieces


@pytest.mark.parametrize("command", [["client/client_grpc.py"], ["client/client_http.py"], ["-m", "bistream", "say"]], ids=" ".join)
def test_the_ways_to_run_it(command: list[str]) -> None:
    result = subprocess.run([sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    assert "--reference-audio" in result.stdout


def test_an_end_without_audio_is_an_error(serve: Serve, output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(lambda request, stream: stream.final(request.id))
    assert run(server, output, "--text", "Hi.", "--speaker-id", "anna") == 1
    assert "without any audio" in capsys.readouterr().err


def test_files_that_cannot_be_used_are_exit_code_2(server: FakeServer, output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = ["--reference-audio", "/nonexistent/voice.wav", "--reference-text", "w"]
    assert run(server, output, "--text", "a", *missing) == 2
    assert "voice.wav" in capsys.readouterr().err
    assert run(server, output.parent / "missing" / "out.wav", "--text", "a", "--speaker-id", "b") == 2
