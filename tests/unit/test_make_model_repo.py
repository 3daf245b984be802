"""Making a model repository: complete, from scratch, and never over a folder that is not ours."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from bistream.checkpoints.model_card import MODEL_CARD_FILE
from bistream.contract.fields import CONTRACTS
from bistream.conversion.records import MADE_OF, file_sha256
from bistream.errors import ConfigError
from bistream.sizing import Gpu
from scripts import make_model_repo
from scripts.make_model_repo import main, make, model_names, model_values


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def model_dir(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINY_MODEL_DIR", str(tiny_model_dir))
    return tiny_model_dir


def made(out: Path, *arguments: str) -> int:
    return main(["--out", str(out), "--model-dir", os.environ["TINY_MODEL_DIR"], *arguments])


def config(out: Path, model: str) -> str:
    return (out / model / "config.pbtxt").read_text(encoding="utf-8")


def test_all_models_are_made_and_nothing_is_left_to_fill(tmp_path: Path, model_dir: Path) -> None:
    assert made(tmp_path / "repo") == 0
    names = [contract.name for contract in CONTRACTS if not contract.family]
    assert files(tmp_path / "repo") == {f"{name}/{file}" for name in names for file in ("config.pbtxt", "1/model.py")}
    for name in names:
        code = "\n".join(line for line in config(tmp_path / "repo", name).splitlines() if not line.startswith("#"))
        assert "${" not in code and f'"{model_dir.resolve()}"' in code
        assert 'key: "model_family" value { string_value: "cosyvoice2" }' in code
    assert [path.name for path in tmp_path.iterdir()] == ["repo"]


def test_the_family_follows_from_the_model_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "cosyvoice3.yaml").touch()
    make(tmp_path / "repo", model_values(model_names(), {"model_dir": str(checkpoint)}, "torch"))
    for name in model_names():
        assert 'key: "model_family" value { string_value: "cosyvoice3" }' in config(tmp_path / "repo", name)
    for setting in (
        "model_family=cosyvoice3",
        "token2wav.model_family=cosyvoice2",
        "languages=en",
        "cosyvoice2.can_be_instructed=true",
        "sample_rate=16000",
    ):
        assert made(tmp_path / "other", "--set", setting) == 1
        assert "leave it out" in capsys.readouterr().err


def test_a_repository_has_the_models_of_its_own_family(tmp_path: Path, tiny_spark_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offline = ("--set", "decoupled_mode=False")
    assert main(["--out", str(tmp_path / "spark"), "--model-dir", str(tiny_spark_dir), *offline]) == 0
    assert {path.name for path in (tmp_path / "spark").iterdir()} == {contract.name for contract in CONTRACTS}
    for name in ("cosyvoice2", "spark_tts"):
        text = config(tmp_path / "spark", name)
        assert f'name: "{name}"' in text and "decoupled: False" in text
        assert 'key: "sample_rate" value { string_value: "16000" }' in text
    assert made(tmp_path / "other", "--set", "spark_tts.decoupled_mode=False") == 1
    assert "no model spark_tts in the repository" in capsys.readouterr().err


def test_clients_read_of_the_front_models_what_the_checkpoint_speaks(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "cosyvoice2.yaml").touch()
    for card, languages, can_be_instructed in (
        (None, "", "true"),
        ({"languages": ["en", "de"], "can_be_instructed": False}, "de,en", "false"),
    ):
        if card is not None:
            (checkpoint / MODEL_CARD_FILE).write_text(json.dumps(card))
        make(tmp_path / "repo", model_values(model_names(), {"model_dir": str(checkpoint)}, "torch"))
        for name in ("cosyvoice2", "cosyvoice2_bistream"):
            text = config(tmp_path / "repo", name)
            assert f'key: "languages" value {{ string_value: "{languages}" }}' in text
            assert f'key: "can_be_instructed" value {{ string_value: "{can_be_instructed}" }}' in text
            assert 'key: "sample_rate" value { string_value: "24000" }' in text
            assert 'key: "tokens_per_second" value { string_value: "25" }' in text


def test_settings_go_to_all_models_or_to_one(tmp_path: Path) -> None:
    out = tmp_path / "repo"
    assert made(out, "--set", "max_sessions=7", "--set", "token2wav.max_sessions=9", "--set", "cosyvoice2.decoupled_mode=False") == 0
    assert 'key: "max_sessions" value { string_value: "7" }' in config(out, "llm_bistream")
    assert 'key: "max_sessions" value { string_value: "9" }' in config(out, "token2wav")
    assert "decoupled: False" in config(out, "cosyvoice2")


def test_a_profile_chooses_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())  # as if it were installed
    assert made(tmp_path / "repo", "--profile", "tensorrt_llm") == 0
    assert 'key: "engine" value { string_value: "tensorrt_llm" }' in config(tmp_path / "repo", "llm_bistream")


def test_the_merged_checkpoint_is_that_of_the_model_directory(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())  # as if it were installed
    arguments = ("--profile", "tensorrt_llm", "--set", f"engine_dir={tmp_path}")
    for made_of, status in ((file_sha256(model_dir / "llm.pt"), 0), ("0" * 64, 1)):
        (tmp_path / "conversion.json").write_text(json.dumps({MADE_OF: made_of}), encoding="utf-8")
        assert made(tmp_path / f"repo-{status}", *arguments) == status
    error = capsys.readouterr().err
    assert f"{tmp_path} was not made of {model_dir.resolve()}/llm.pt; make it again" in error and error.count("\n") == 1
    assert not (tmp_path / "repo-1").exists()


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({"max_sessions": "10", "max_session_tokens": "100"}, "1280"),  # blocks of 64
        ({"max_sessions": "10"}, "20480"),
        ({"kv_cache_tokens": "5000"}, "5000"),
        ({"device": "cuda:1", "kv_cache_tokens": "5000"}, "5000"),
        ({"token2wav.device": "cuda:1", "kv_cache_tokens": "5000"}, "0"),
        ({"kv_cache_tokens": "5000", "shared_kv_cache_tokens": "7"}, "7"),
    ],
)
def test_flow_state_leaves_memory_to_a_language_model_on_the_same_device(settings: dict[str, str], tokens: str) -> None:
    values = model_values(model_names(), {"model_dir": "/m", **settings}, "torch")
    assert values["token2wav"]["shared_kv_cache_tokens"] == tokens


def set_to(text: str, name: str) -> str:
    """The value of a parameter of a ``config.pbtxt``."""
    return text.split(f'key: "{name}" value {{ string_value: "', 1)[1].split('"', 1)[0]


def test_on_a_gpu_all_models_have_the_limits_that_its_memory_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(make_model_repo, "gpu_of", lambda device: Gpu(0, 10**9))
    assert made(tmp_path / "repo") == 0
    front, language_model, speech = (config(tmp_path / "repo", name) for name in ("cosyvoice2_bistream", "llm_bistream", "token2wav"))
    sessions = set_to(front, "max_sessions")
    assert {set_to(text, "max_sessions") for text in (language_model, speech)} == {sessions} != {"64"}
    assert set_to(speech, "shared_kv_cache_tokens") == str(2048 * int(sessions))
    assert int(set_to(speech, "flow_state_mb")) > 0
    remembered = float(set_to(front, "reserved_speech_s"))
    assert f"room for {sessions} sessions at a time, and remembers at least {remembered:g} s" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["max_sessions", "cosyvoice2_bistream.max_sessions"])
def test_with_sessions_that_are_set_or_without_a_gpu_no_limit_is_chosen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(tmp_path / "cpu", "--set", "device=cpu") == 0
    monkeypatch.setattr(make_model_repo, "gpu_of", lambda device: Gpu(0, 10**9))
    assert made(tmp_path / "repo", "--set", f"{name}=7") == 0
    assert set_to(config(tmp_path / "repo", "cosyvoice2_bistream"), "max_sessions") == "7"
    assert set_to(config(tmp_path / "cpu", "token2wav"), "max_sessions") == "64"
    for out in ("cpu", "repo"):
        assert set_to(config(tmp_path / out, "token2wav"), "flow_state_mb") == "0"
        assert set_to(config(tmp_path / out, "cosyvoice2_bistream"), "reserved_speech_s") == "0.0"


def test_what_is_set_of_memory_bounds_the_sessions_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_model_repo, "gpu_of", lambda device: Gpu(int(device.partition(":")[2] or 0), 10**9))
    given = ("kv_cache_tokens=20480", "token2wav.flow_state_mb=50", "cosyvoice2_bistream.reserved_speech_s=9", "token2wav.device=cuda:1")
    assert made(tmp_path / "repo", *(word for setting in given for word in ("--set", setting))) == 0
    front, language_model, speech = (config(tmp_path / "repo", name) for name in ("cosyvoice2_bistream", "llm_bistream", "token2wav"))
    assert set_to(language_model, "kv_cache_tokens") == "20480"
    assert set_to(speech, "flow_state_mb") == "50"
    assert set_to(front, "reserved_speech_s") == "9"
    assert 1 <= int(set_to(front, "max_sessions")) <= 10


def test_a_full_gpu_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(make_model_repo, "gpu_of", lambda device: Gpu(0, 0))
    assert made(tmp_path / "repo") == 1
    assert "too little free memory for one session" in capsys.readouterr().err


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


def test_a_failure_in_the_middle_leaves_the_old_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "repo"
    values = model_values(["token2wav", "cosyvoice2"], {"model_dir": "/m"}, "torch")
    make(out, values)
    before = files(out)
    monkeypatch.setattr(make_model_repo, "ROOT", tmp_path / "nothing")
    with pytest.raises(ConfigError, match="token2wav"):
        make(out, values)
    assert files(out) == before
