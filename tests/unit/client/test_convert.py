"""``bistream convert``: a source and a voice go out, the audio arrives in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from bistream.client.convert import main
from tests.unit.client.fake_server import Received, Serve, Stream

SOURCE, VOICE = np.linspace(-0.5, 0.5, 16000, dtype=np.float32), np.linspace(-0.1, 0.1, 8000, dtype=np.float32)


def speak(request: Received, stream: Stream) -> None:
    stream.audio(request.id, np.zeros(2400), 0, 0)
    stream.final(request.id)


def test_the_converted_speech_is_written(serve: Serve, tmp_path: Path) -> None:
    server = serve(speak)
    soundfile.write(tmp_path / "source.wav", SOURCE, 16000, subtype="FLOAT")
    soundfile.write(tmp_path / "voice.wav", VOICE, 16000, subtype="FLOAT")
    output = tmp_path / "out.wav"
    arguments = ["--reference-audio", str(tmp_path / "voice.wav"), "--output", str(output), "--seed", "4"]
    assert main([str(tmp_path / "source.wav"), "--server", server.address, *arguments]) == 0
    (request,) = server.received
    np.testing.assert_array_equal(request.inputs["source_wav"], SOURCE.reshape(1, -1))
    assert request.inputs["source_wav_len"].item() == len(SOURCE)
    assert (request.inputs["target_text"], request.flag("is_start"), request.flag("is_end")) == (b"", True, True)
    assert request.inputs["reference_wav"].shape == (1, len(VOICE)) and request.inputs["seed"].item() == 4
    assert not {"reference_text", "instruct_text", "is_cross_lingual"} & set(request.inputs)
    assert soundfile.info(output).frames == 2400


@pytest.mark.parametrize(
    "arguments", [[], ["s.wav", "--reference-text", "x"], ["s.wav", "--speaker-id", "a", "--reference-audio", "v.wav"]]
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2


def test_a_source_that_cannot_be_read_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.wav"
    assert main([str(tmp_path / "missing.wav"), "--speaker-id", "a", "--output", str(output)]) == 2
    assert "missing.wav" in capsys.readouterr().err and not output.exists()
