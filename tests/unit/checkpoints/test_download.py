"""A checkpoint is downloaded whole or not at all, continued after a cut, and every failure is one sentence."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bistream.checkpoints.download import RECORD, check_directory
from bistream.checkpoints.model_dir import check_model_dir
from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.families.spark import SPARK
from scripts.download_checkpoint import main
from tests.unit.checkpoints.stand_in import REPO, Repository, commit_of, serving

ROOT = Path(__file__).resolve().parents[3]
HUBS = ("huggingface", "modelscope")
LLM_BYTES = 1 << 20
LONG_BYTES, CUT = 3 << 20, 5 << 19


@pytest.fixture
def repository() -> Repository:
    content = random.Random(0)
    files = {names[0]: content.randbytes(2000) for names in COSYVOICE2.required_files}
    files["llm.pt"] = content.randbytes(LLM_BYTES)
    return Repository({**files, "README.md": b"words", "flow.decoder.estimator.fp32.onnx": b"not read by the server"})


@pytest.fixture
def cut(repository: Repository) -> Repository:
    """Its llm.pt is long; the connection ends within it, and then the hub only answers with an error."""
    repository.files["llm.pt"] = bytes(range(256)) * (LONG_BYTES // 256)
    repository.cut_after["llm.pt"], repository.status["llm.pt"] = CUT, 503
    return repository


@pytest.fixture(params=HUBS)
def hub(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def endpoint(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(repository) as address:
        use(address, monkeypatch)
        yield address


def use(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HF_ENDPOINT": address, "MODELSCOPE_ENDPOINT": address, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    # The libraries' own retries, without their pauses: what a second run does is what is tested.
    monkeypatch.setattr("modelscope_hub._download.DOWNLOAD_RETRY_TIMES", 0)
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def run(hub: str, directory: Path, *more: str) -> int:
    return main([str(directory), "--hub", hub, "--model-id", REPO, *more])


def test_the_names_of_the_released_checkpoints() -> None:
    assert COSYVOICE2.release.repo_id("huggingface") == "FunAudioLLM/CosyVoice2-0.5B"
    assert COSYVOICE2.release.repo_id("modelscope") == "iic/CosyVoice2-0.5B"
    assert {COSYVOICE3.release.repo_id(hub) for hub in ("huggingface", "modelscope")} == {"FunAudioLLM/Fun-CosyVoice3-0.5B-2512"}
    assert {SPARK.release.repo_id(hub) for hub in ("huggingface", "modelscope")} == {"SparkAudio/Spark-TTS-0.5B"}


def files(directory: Path) -> dict[str, bytes]:
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def one_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of the error output, which is the program's."""
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("download_checkpoint.py: ") and line.endswith(".") and "Traceback" not in line
    return line


@pytest.mark.usefixtures("endpoint")
def test_what_the_server_reads_arrives_with_its_record(hub: str, repository: Repository, tmp_path: Path) -> None:
    directory = tmp_path / "models" / "CosyVoice2-0.5B"
    assert run(hub, directory) == 0
    found = files(directory)
    record = json.loads(found.pop(RECORD))
    expected = {name: content for name, content in repository.files.items() if "estimator" not in name}
    assert found == expected
    assert {name: entry["size"] for name, entry in record["files"].items()} == {name: len(content) for name, content in expected.items()}
    assert record["repo_id"] == REPO and record["commit"] == (repository.commit if hub == "huggingface" else "master")
    assert [path.name for path in directory.parent.iterdir()] == ["CosyVoice2-0.5B"]
    assert main(["--check", str(directory)]) == 0


def test_a_licence_is_told_before_the_download(
    hub: str, tiny_spark_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a family whose files lie in folders, and all that it needs arrives."""
    content = {path.relative_to(tiny_spark_dir).as_posix(): path.read_bytes() for path in tiny_spark_dir.rglob("*") if path.is_file()}
    repository = Repository(content, status={"config.yaml": 503})
    with serving(repository) as address:
        use(address, monkeypatch)
        repository.cut_after["config.yaml"] = 1
        assert run(hub, tmp_path / "model", "--family", SPARK.name) == 1
        assert "CC BY-NC-SA 4.0 (no commercial use)" in capsys.readouterr().out
        repository.status.clear()
        repository.cut_after.clear()
        assert run(hub, tmp_path / "model", "--family", SPARK.name) == 0
    assert files(tmp_path / "model").keys() - {RECORD} == {names[0] for names in SPARK.required_files}
    assert check_model_dir(tmp_path / "model").family is SPARK


@pytest.mark.usefixtures("endpoint")
def test_a_cut_download_never_looks_complete_and_keeps_whole_files(
    hub: str, cut: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "model"
    assert run(hub, directory) == 1
    assert "run the same command again" in one_sentence(capsys)
    assert not directory.exists() and not (tmp_path / "model.partial" / "llm.pt").exists()
    cut.status.clear()
    cut.cut_after.clear()
    whole = {path.name for path in (tmp_path / "model.partial").glob("*") if path.is_file()}
    cut.requests.clear()
    assert run(hub, directory) == 0
    assert files(directory)["llm.pt"] == cut.files["llm.pt"]
    assert not {request.path for request in cut.requests} & whole, "a whole file was fetched twice"


@pytest.mark.usefixtures("endpoint")
def test_another_revision_starts_anew_and_leaves_nothing_of_the_first(hub: str, cut: Repository, tmp_path: Path) -> None:
    cut.files = {"spk2info.pt": b"only in the first version", **cut.files}
    assert run(hub, tmp_path / "model") == 1
    cut.status.clear()
    del cut.files["spk2info.pt"]
    cut.commit = commit_of(2)
    cut.files["llm.pt"] = cut.files["llm.pt"][::-1]
    assert run(hub, tmp_path / "model", "--revision", cut.commit) == 0
    found = files(tmp_path / "model")
    assert found["llm.pt"] == cut.files["llm.pt"] and "spk2info.pt" not in found
    assert json.loads(found[RECORD])["revision"] == cut.commit


@pytest.mark.usefixtures("endpoint")
@pytest.mark.parametrize("path", ["hift.pt", "llm.pt"])  # a small file and, for Hugging Face, one with a SHA-256
def test_a_wrong_checksum_is_refused_and_fetched_again(
    hub: str, path: str, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("modelscope_hub._download.DOWNLOAD_HASH_RETRY_TIMES", 1)
    repository.corrupt.add(path)
    assert run(hub, tmp_path / "model") == 1
    assert path in one_sentence(capsys)
    assert not (tmp_path / "model").exists()
    repository.corrupt.clear()
    assert run(hub, tmp_path / "model") == 0
    assert check_directory(tmp_path / "model") is not None


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))  # the system refuses to write beyond, as a full disk does
sys.argv = ["download_checkpoint.py", *sys.argv[1:]]
runpy.run_path("scripts/download_checkpoint.py", run_name="__main__")
"""


@pytest.mark.usefixtures("endpoint")
def test_a_disk_that_fills_up_is_one_sentence_and_nothing_is_lost(hub: str, cut: Repository, tmp_path: Path) -> None:
    cut.cut_after.clear()
    cut.status.clear()
    arguments = [str(tmp_path / "model"), "--hub", hub, "--model-id", REPO]
    environment = {**os.environ, "MODELSCOPE_DOWNLOAD_MAX_RETRIES": "0"}
    full = subprocess.run(
        [sys.executable, "-c", LIMITED, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert full.returncode == 1, full.stderr
    last = full.stderr.strip().splitlines()[-1]
    assert last.startswith("download_checkpoint.py: The disk of") and "is full" in last and "Traceback" not in full.stderr
    assert run(hub, tmp_path / "model") == 0


def test_without_a_network_one_sentence_names_the_way_out(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        use(f"http://127.0.0.1:{unused.getsockname()[1]}", monkeypatch)
        assert run(hub, tmp_path / "model") == 1
    sentence = one_sentence(capsys)
    assert "could not be downloaded" in sentence and "MODEL_DIR=" in sentence
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("endpoint")
def test_names_that_do_not_exist(hub: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "model"), "--hub", hub, "--model-id", "nobody/nothing"]) == 1
    assert "has no nobody/nothing" in one_sentence(capsys)
    assert run(hub, tmp_path / "model", "--revision", "v9") == 1
    assert "at revision v9" in one_sentence(capsys)


@pytest.mark.parametrize("name", ["CosyVoice2-0.5B", "a/b/c", "https://hub/a/b", "a/ b", "/a"])
def test_a_model_id_without_owner_is_refused_before_anything_is_asked(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "model"), "--model-id", name]) == 2
    assert "OWNER/NAME" in one_sentence(capsys)


@pytest.mark.usefixtures("endpoint")
def test_a_repository_of_something_else_is_refused(
    hub: str, repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del repository.files["flow.pt"]
    assert run(hub, tmp_path / "model") == 1
    assert "has no flow.pt" in one_sentence(capsys)


@pytest.mark.usefixtures("endpoint")
def test_an_existing_directory_is_never_written_to(hub: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.txt").write_text("keep")
    assert run(hub, tmp_path / "model") == 1
    assert "exists already" in one_sentence(capsys)
    assert files(tmp_path / "model") == {"mine.txt": b"keep"}


def test_a_check_notices_every_change(repository: Repository, endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "model"
    assert run("huggingface", directory) == 0
    content = (directory / "hift.pt").read_bytes()
    for changed in (content[:-1], content[:-1] + bytes([content[-1] ^ 1]), None):
        (directory / "hift.pt").unlink()
        if changed is not None:
            (directory / "hift.pt").write_bytes(changed)
        assert main(["--check", str(directory)]) == 1
        assert "hift.pt" in one_sentence(capsys)
    (directory / RECORD).unlink()
    assert main(["--check", str(directory)]) == 1
    assert "has no hift.pt" in one_sentence(capsys)
    (directory / "hift.pt").write_bytes(content)
    assert main(["--check", str(directory)]) == 1
    assert "download it again" in one_sentence(capsys), "random bytes are no checkpoint"


def test_a_directory_without_a_record_is_looked_at(tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(tiny_model_dir)]) == 0
    assert "no checksum was compared" in capsys.readouterr().out


def test_the_libraries_are_loaded_only_for_a_download() -> None:
    code = "import scripts.download_checkpoint, sys; print([m for m in ('huggingface_hub', 'modelscope_hub', 'torch') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"
