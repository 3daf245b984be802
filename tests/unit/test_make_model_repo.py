"""Making a model repository: complete, from scratch, and never over a folder that is not ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from bistream.wire import CONTRACTS
from scripts.make_model_repo import RepositoryError, main, make, model_names, model_values


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def made(out: Path, *arguments: str) -> int:
    return main(["--out", str(out), "--model-dir", "/models/CosyVoice2-0.5B", *arguments])


def config(out: Path, model: str) -> str:
    return (out / model / "config.pbtxt").read_text(encoding="utf-8")


def test_all_models_are_made_and_nothing_is_left_to_fill(tmp_path: Path) -> None:
    assert made(tmp_path / "repo") == 0
    names = [contract.name for contract in CONTRACTS]
    assert files(tmp_path / "repo") == {f"{name}/{file}" for name in names for file in ("config.pbtxt", "1/model.py")}
    for name in names:
        code = "\n".join(line for line in config(tmp_path / "repo", name).splitlines() if not line.startswith("#"))
        assert "${" not in code and '"/models/CosyVoice2-0.5B"' in code
    assert [path.name for path in tmp_path.iterdir()] == ["repo"]


def test_settings_go_to_all_models_or_to_one(tmp_path: Path) -> None:
    out = tmp_path / "repo"
    assert made(out, "--set", "max_sessions=7", "--set", "token2wav.max_sessions=9", "--set", "cosyvoice2.decoupled_mode=False") == 0
    assert 'key: "max_sessions" value { string_value: "7" }' in config(out, "llm_bistream")
    assert 'key: "max_sessions" value { string_value: "9" }' in config(out, "token2wav")
    assert "decoupled: False" in config(out, "cosyvoice2")


def test_a_profile_chooses_the_engine(tmp_path: Path) -> None:
    assert made(tmp_path / "repo", "--profile", "tensorrt_llm") == 0
    assert 'key: "engine" value { string_value: "tensorrt_llm" }' in config(tmp_path / "repo", "llm_bistream")


def test_making_again_starts_from_scratch(tmp_path: Path) -> None:
    out = tmp_path / "repo"
    assert made(out) == 0
    (out / "token2wav" / "1" / "stale.py").write_text("", encoding="utf-8")
    assert made(out, "--models", "token2wav,llm_bistream") == 0
    assert {path.name for path in out.iterdir()} == {"token2wav", "llm_bistream"}
    assert "token2wav/1/stale.py" not in files(out)


def test_a_folder_of_someone_else_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "repo"
    assert made(out) == 0
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    assert made(out) == 1
    assert "notes.txt" in capsys.readouterr().err
    assert (out / "notes.txt").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--set", "max_session=7"], "max_session"),
        (["--set", "nobody.max_sessions=7"], "nobody"),
        (["--set", "token2wav.engine=torch"], "engine"),
        (["--set", "max_sessions=0"], "max_sessions"),
        (["--set", "max_sessions=many"], "max_sessions"),
        (["--models", "token3wav"], "token3wav"),
    ],
)
def test_wrong_settings_are_refused_and_the_old_repository_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    out = tmp_path / "repo"
    assert made(out) == 0
    before = {name: (out / name).read_bytes() for name in files(out)}
    assert made(out, *arguments) == 1
    assert named in capsys.readouterr().err
    assert {name: (out / name).read_bytes() for name in files(out)} == before
    assert [path.name for path in tmp_path.iterdir()] == ["repo"]


def test_the_model_directory_is_required() -> None:
    with pytest.raises(RepositoryError, match="--model-dir"):
        model_values(model_names(), {}, "torch")


def test_a_failure_in_the_middle_leaves_the_old_repository(tmp_path: Path) -> None:
    out = tmp_path / "repo"
    values = model_values(["token2wav", "cosyvoice2"], {"model_dir": "/m"}, "torch")
    make(out, values)
    before = files(out)
    with pytest.raises(RepositoryError, match="token2wav"):
        make(out, values, root=tmp_path / "nothing")
    assert files(out) == before
