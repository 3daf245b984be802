"""``bistream evaluate`` before a server in this process, without judges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bistream.commands.evaluate import main
from tests.unit.client.fake_server import SAMPLES_PER_CHARACTER, Reader, Received, Stream
from tests.unit.interfaces.rig import ReadyServer, reading

TEXTS = ("Two words.", "Another.", "这里。", "Refused.")


class Refuser:
    def __init__(self) -> None:
        self._reader = Reader()

    def __call__(self, request: Received, stream: Stream) -> None:
        if b"Refused" in request.inputs.get("target_text", b""):
            stream.error(request.id, "INVALID_INPUT: The text is refused; send another one. [session x]")
        else:
            self._reader(request, stream)


def evaluate(server: ReadyServer, folder: Path, *words: str) -> int:
    rows = "\n".join(json.dumps({"text": text}) for text in TEXTS)
    (folder / "mine.jsonl").write_text(rows, encoding="utf-8")
    common = ["--server", server.address, "--speaker-id", "anna", "--set", f"mine={folder}/mine.jsonl"]
    return main([*common, "--judges-python", "nowhere", "--out", str(folder / "report"), *words])


def test_a_server_is_spoken_to_in_one_request_and_in_pieces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with reading(Refuser()) as server:
        server.card = {"languages": "", "sample_rate": "24000"}
        assert evaluate(server, tmp_path, "--form", "one_shot", "--form", "word_by_word", "--keep", str(tmp_path / "kept")) == 0
        sent = [request.inputs["target_text"].decode() for request in server.received if request.inputs["target_text"]]
    assert {"Two words.", "Two ", "words.", "这", "里"} <= set(sent)
    assert "whisper did not judge: nowhere is not there" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["means"]["mine"]["one_shot"]["failures"][0] == 0.25
    assert report["equal"] == {"word_by_word-one_shot": [3, 3]}
    forms = report["sentences"][0]["forms"]
    assert forms["one_shot"]["seconds"] == len(TEXTS[0]) * SAMPLES_PER_CHARACTER / 24_000 and forms["one_shot"]["first_audio_s"] > 0
    assert "send another one" in report["sentences"][3]["forms"]["one_shot"]["error"]
    assert len(list((tmp_path / "kept/word_by_word/mine").glob("*.wav"))) == 3


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    words = ["--form", "one_shot", "--keep", str(tmp_path / "kept")]
    with reading() as server:
        server.card = {"sample_rate": "24000"}
        assert evaluate(server, tmp_path, *words) == 0
        first = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
        (tmp_path / "kept/one_shot/mine/0002.wav").unlink()
        (tmp_path / "kept/one_shot/mine/0003.json").write_text('{"digest": ')  # where it was killed
        before = len(server.received)
        assert evaluate(server, tmp_path, *words, "--resume") == 0
        assert {request.inputs["target_text"].decode() for request in server.received[before:]} == {TEXTS[1], TEXTS[2]}
    second = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    rows = [[row["forms"]["one_shot"] for row in report["sentences"]] for report in (first, second)]
    assert [row["sound"] for row in rows[0]] == [row["sound"] for row in rows[1]]
    assert "first_audio_s" in rows[0][0] and rows[0][0] == rows[1][0]  # with the times of the interrupted run


def test_a_run_goes_on_where_sentences_have_failed(tmp_path: Path) -> None:
    words = ["--form", "one_shot", "--keep", str(tmp_path / "kept"), "--resume"]
    with reading(Refuser()) as server:
        server.card = {"sample_rate": "24000"}
        assert evaluate(server, tmp_path, *words) == 0 and evaluate(server, tmp_path, *words) == 0
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["means"]["mine"]["one_shot"]["failures"][0] == 0.25


def test_conditions_decide_the_exit_code(tmp_path: Path) -> None:
    with reading(Refuser()) as server:
        server.card = {"sample_rate": "24000", "languages": "en"}
        condition = ["--form", "one_shot", "--fail-if"]
        assert evaluate(server, tmp_path, *condition, "failures>50%") == 0
        assert evaluate(server, tmp_path, *condition, "failures>30%") == 1  # without the Chinese sentence one of three
        assert evaluate(server, tmp_path, *condition, "wer>3%") == 1  # which nobody has judged


@pytest.mark.parametrize(
    "words,said",
    [
        (["--compare", "solver_steps=5"], "need --model-dir"),
        (["--compare", "state=8bit"], "'state' is unknown"),
        (["--set", "nothing"], "no set 'nothing'"),
        (["--fail-if", "loud>3"], "'loud' is neither a metric"),
        (["--judge", "ears"], "no judge 'ears'"),
        (["--similar-to", "nowhere.wav"], "nowhere.wav is not there"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    with reading() as server:
        server.card = {"sample_rate": "24000"}
        assert evaluate(server, tmp_path, *words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (tmp_path / "report.json").exists()


def test_a_server_that_is_not_there_is_another_code(tmp_path: Path) -> None:
    with reading() as server:
        pass
    assert evaluate(server, tmp_path) == 3
