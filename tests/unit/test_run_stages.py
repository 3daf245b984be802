"""run.sh: which model directory a stage uses, what reaches the programs, and what is refused. A recorder takes the place of Python."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDER = """#!/bin/bash
echo "$*" >>"$CALLS"
case "$*" in
  *importlib.metadata*) exit "${TORCH_IS_THERE:-0}" ;;
  *torch==*+cpu*) exit "${PIP_HAS_CPU_BUILD:-0}" ;;
  *requirements/uv.txt*)
    printf '#!/bin/bash\necho "uv $*" >>"$CALLS"; exit "$UV_HAS_CPU_BUILD"\n' >"$VENV/bin/uv"
    chmod +x "$VENV/bin/uv" ;;
  *make_checkpoint.py*) out="${*: -1}" && mkdir -p "$out" && touch "$out/llm.pt" ;;
  *convert_checkpoint.py*--out*) mkdir -p "${*: -1}" ;;
  *fail-here*) exit 1 ;;
esac
"""


class Stages:
    def __init__(self, folder: Path) -> None:
        self.build = folder / "build"
        self._calls = folder / "calls"
        venv, triton = folder / "venv", folder / "triton"
        for path in (venv / "bin" / "python", triton / "tritonserver", triton / "backends" / "python" / "libtriton_python.so"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(RECORDER)
            path.chmod(0o755)
        self._environment = {
            "PATH": os.environ["PATH"],
            "VENV": str(venv),
            "BUILD": str(self.build),
            "VOICE_DIR": str(folder / "voice"),
            "CALLS": str(self._calls),
            "TRITON_SERVER": str(triton / "tritonserver"),
            "TRITON_BACKENDS": str(triton / "backends"),
        }

    def run(self, *arguments: str, **variables: str) -> tuple[int, list[str], str]:
        """Exit status, what was started (without the set-up), and the error output."""
        self._calls.unlink(missing_ok=True)
        environment = {**self._environment, **variables}
        result = subprocess.run(["bash", str(ROOT / "run.sh"), *arguments], env=environment, capture_output=True, text=True, check=False)
        calls = self._calls.read_text().splitlines() if self._calls.exists() else []
        set_up = ("pip install", "setup_triton", "importlib.metadata")
        return result.returncode, [call for call in calls if not any(words in call for words in set_up)], result.stderr

    def make(self, directory: Path) -> Path:
        directory.mkdir(parents=True)
        for name in ("llm.pt", "spk2info.pt"):
            (directory / name).touch()
        return directory

    def installed(self) -> list[str]:
        return [call for call in self._calls.read_text().splitlines() if "pip install" in call]


@pytest.fixture
def stages(tmp_path: Path) -> Stages:
    return Stages(tmp_path)


def test_default_is_the_download_else_the_trained_voice_else_random_weights(stages: Stages, tmp_path: Path) -> None:
    def model_dir(**variables: str) -> str:
        status, calls, error = stages.run("2", "2", **variables)
        assert status == 0, error
        (call,) = [call for call in calls if "make_model_repo.py" in call]
        return call.split("--model-dir ")[1].split(" ")[0]

    assert model_dir() == f"{stages.build}/tiny_checkpoint"
    voice = stages.make(tmp_path / "voice")
    assert model_dir() == str(voice)
    download = stages.make(stages.build / "CosyVoice2-0.5B")
    assert model_dir() == str(download)
    assert model_dir(MODEL_DIR=str(voice)) == str(voice)
    assert model_dir(FAMILY="cosyvoice3") == f"{stages.build}/tiny_cosyvoice3", "the voice is a CosyVoice2"


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"MODEL_DIR": "/no/such/model"}, "MODEL_DIR=/no/such/model bash run.sh 0 0"),
        ({"PROFILE": "vllm"}, "PROFILE is vllm; set it to one of: torch tensorrt_llm"),
        ({"FAMILY": "cosyvoice1"}, "FAMILY is cosyvoice1; set it to one of: cosyvoice2 cosyvoice3"),
    ],
)
def test_a_wrong_variable_is_one_sentence(variables: dict[str, str], sentence: str, stages: Stages) -> None:
    status, calls, error = stages.run("2", "2", **variables)
    assert (status, calls) == (1, []) and sentence in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("family", "release", "weights"),
    [
        ("cosyvoice2", "CosyVoice2-0.5B", "llm.pt"),
        ("cosyvoice3", "Fun-CosyVoice3-0.5B-2512", "llm.pt"),
        ("spark", "Spark-TTS-0.5B", "LLM/model.safetensors"),
    ],
)
def test_the_stages_of_each_family(family: str, release: str, weights: str, stages: Stages) -> None:
    """In both modes and with both engines."""

    def calls(*words: str, **variables: str) -> list[str]:
        status, found, error = stages.run(*words, FAMILY=family, **variables)
        assert status == 0, error
        return found

    download, converted = stages.build / release, stages.build / f"{family}_llm"
    assert calls("0", "0")[-1].endswith(f"{download} --hub huggingface --family {family}")
    (download / weights).parent.mkdir(parents=True)
    (download / weights).touch()
    assert calls("0", "0") == [f"scripts/download_checkpoint.py --check {download}"]
    assert calls("1", "1") == [], "the torch engine loads the directory as it is"
    convert, compare = calls("1", "1", PROFILE="tensorrt_llm")
    assert convert == f"scripts/convert_checkpoint.py huggingface --model-dir {download} --out {converted}"
    assert compare == f"scripts/test_engine.py --model-dir {download} --engine-dir {converted}"
    (repository,) = calls("2", "2", "offline", PROFILE="tensorrt_llm")
    assert f"--model-dir {download} " in repository and f"engine_dir={converted}" in repository and "decoupled_mode=False" in repository
    assert "decoupled_mode" not in calls("2", "2")[0]
    for mode, client, benchmark in (("streaming", " say ", "streaming_inference.py"), ("offline", " say-http ", "benchmarks/offline.py")):
        say, load, alone = calls("4", "6", mode, NUM_TASKS="1 2 4")
        assert client in say and f"--mode {mode} --num-tasks 1 2 4 " in load
        assert benchmark in alone and f"--model-dir {download} " in alone


def test_a_step_that_fails_ends_everything(stages: Stages) -> None:
    for words in (("serve",), ("2", "3")):
        status, calls, _ = stages.run(*words, SETTINGS="fail-here")
        assert status != 0 and "fail-here" in calls[-1] and not any("serve.py" in call for call in calls)


@pytest.mark.parametrize(
    "arguments",
    [("0",), ("0", "7"), ("3", "2"), ("0", "0", "both"), ("0", "0", "offline", "more"), ("00", "1"), ("gateway",)],
    ids=" ".join,
)
def test_wrong_arguments_are_one_sentence(arguments: tuple[str, ...], stages: Stages) -> None:
    status, calls, error = stages.run(*arguments)
    assert (status, calls) == (1, [])
    assert error.startswith("run.sh: ") and len(error.splitlines()) == 1


def test_what_follows_a_name_reaches_its_program(stages: Stages, tmp_path: Path) -> None:
    known = {"MODEL_DIR": str(stages.make(tmp_path / "model")), "VOICES_DIR": str(tmp_path / "voices")}

    def last(*words: str) -> str:
        status, calls, error = stages.run(*words, **known)
        assert status == 0, error
        return calls[-1]

    assert last("serve", "--grpc-port", "9").endswith("--grpc-port 9")
    assert last("serve-gpus", "--servers", "2").endswith("--servers 2")
    assert last("interfaces", "--server", "a:8001").endswith("--server a:8001")
    both = last("serve-all", "--grpc-port", "9", "--interfaces", "--port", "1", "--any-voice")
    assert re.search(r"serve_all\.py .*--grpc-port 9 --interfaces .*--port 1 --any-voice$", both)
    assert re.search(r" --interfaces --voices-folder .*--recording reference \S+ .*\S$", last("serve-all"))
    assert "--reference-audio" in last("say", "Hello.") and "--reference-audio" not in last("say", "Hello.", "--speaker-id", "anna")
    assert last("health", "--server", "a:1") == "-m bistream health --server a:1"
    assert last("doctor", "--text", "Hi.") == f"-m bistream doctor {tmp_path}/model --text Hi."
    assert last("voices", "list") == f"-m bistream voices list --voices-dir {tmp_path}/voices"
    assert f"--model-dir {tmp_path}/model" in last("voices", "add", "anna")
    assert f"voices_dir={tmp_path}/voices" in last("2", "2"), "the server finds what is added"
