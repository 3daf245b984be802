"""The stages of run.sh: which programs they start with which arguments. The programs are replaced by one that writes its arguments down."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What run.sh starts in place of Python. Conversions and downloads make what later stages look for.
RECORDER = """#!/bin/bash
echo "$*" >>"$CALLS"
case "$*" in
  *--fail-here*) exit 1 ;;
  *importlib.metadata*) exit "${TORCH_IS_THERE:-0}" ;;
  *torch==*+cpu*) exit "${PIP_HAS_CPU_BUILD:-0}" ;;
  *requirements/uv.txt*)
    printf '#!/bin/bash\necho "uv $*" >>"$CALLS"; exit "$UV_HAS_CPU_BUILD"\n' >"$VENV/bin/uv"
    chmod +x "$VENV/bin/uv" ;;
  *convert_checkpoint.py*huggingface*) mkdir -p "$6" && touch "$6/config.json" ;;
  *make_checkpoint.py*) out="${*: -1}" && mkdir -p "$out" && touch "$out/llm.pt" ;;
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
            "PYTHON": str(venv / "bin" / "python"),
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

    def make(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        for name in ("llm.pt", "spk2info.pt"):
            (directory / name).touch()

    def installed(self) -> list[str]:
        return [call for call in self._calls.read_text().splitlines() if "pip install" in call]


@pytest.fixture
def stages(tmp_path: Path) -> Stages:
    return Stages(tmp_path)


def test_a_directory_that_is_not_there_is_refused_by_every_stage_that_reads_it(stages: Stages) -> None:
    for profile in ("torch", "tensorrt_llm"):
        for stage in ("1", "2", "6"):
            status, calls, error = stages.run(stage, stage, MODEL_DIR="/no/such/model", PROFILE=profile)
            assert status == 1 and "MODEL_DIR=/no/such/model bash run.sh 0 0" in error, (profile, stage)
            assert not [call for call in calls if "check" not in call], (profile, stage)


def test_a_hub_that_does_not_exist_is_one_sentence(stages: Stages) -> None:
    status, calls, error = stages.run("0", "0", MODEL_HUB="nowhere")
    assert (status, calls, error) == (1, [], "run.sh: MODEL_HUB is nowhere; set it to huggingface or modelscope\n")


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"TRTLLM_BACKEND": "engine"}, "TRTLLM_BACKEND is engine; set it to pytorch or tensorrt"),
        ({"TRTLLM_DTYPE": "int8"}, "TRTLLM_DTYPE is int8; set it to float16, bfloat16 or float32"),
        ({"PYTHON_TRTLLM": "/nowhere/python3"}, "PYTHON_TRTLLM is /nowhere/python3, which does not exist; set it to"),
    ],
)
def test_a_wrong_variable_of_tensorrt_llm_is_told_before_anything_is_made(wrong: dict[str, str], sentence: str, stages: Stages) -> None:
    status, calls, error = stages.run("1", "2", PROFILE="tensorrt_llm", **wrong)
    assert (status, calls) == (1, []) and sentence in error


def test_stage_2_of_tensorrt_llm_names_the_stage_that_is_missing(stages: Stages) -> None:
    status, _, error = stages.run("2", "2", PROFILE="tensorrt_llm")
    assert status == 1 and "bash run.sh 1 1" in error


@pytest.mark.parametrize(
    "arguments", [("0",), ("0", "7"), ("3", "2"), ("0", "0", "both"), ("0", "0", "offline", "more"), ("00", "1")], ids=" ".join
)
def test_wrong_arguments_are_one_sentence(arguments: tuple[str, ...], stages: Stages) -> None:
    status, calls, error = stages.run(*arguments)
    assert (status, calls) == (1, [])
    assert error.startswith("run.sh: ") and len(error.splitlines()) == 1


@pytest.mark.parametrize("stage", ["1", "2"])
def test_an_unknown_profile_is_one_sentence(stage: str, stages: Stages) -> None:
    status, _, error = stages.run(stage, stage, PROFILE="vllm")
    assert status == 1 and error == "run.sh: PROFILE is vllm; set it to torch or tensorrt_llm\n"


def test_a_model_directory_that_does_not_exist_is_one_sentence(stages: Stages) -> None:
    status, calls, error = stages.run("2", "2", MODEL_DIR="/nowhere/model")
    assert (status, calls) == (1, []) and "MODEL_DIR /nowhere/model does not exist" in error


def test_default_is_the_download_else_the_trained_voice_else_random_weights(stages: Stages, tmp_path: Path) -> None:
    voice, download, own = tmp_path / "voice", stages.build / "CosyVoice2-0.5B", tmp_path / "own"

    def model_dir(**variables: str) -> str:
        status, calls, error = stages.run("2", "2", **variables)
        assert status == 0, error
        (call,) = [call for call in calls if "make_model_repo.py" in call]
        return call.split("--model-dir ")[1].split(" ")[0]

    assert model_dir() == f"{stages.build}/tiny_checkpoint"
    stages.make(voice)
    assert model_dir() == str(voice)
    stages.make(download)
    assert model_dir() == str(download)
    stages.make(own)
    assert model_dir(MODEL_DIR=str(own)) == str(own)
    assert model_dir(FAMILY="cosyvoice3") == f"{stages.build}/tiny_cosyvoice3", "the voice is a CosyVoice2"


def both_of(calls: list[str]) -> tuple[str, str]:
    """The options of the server and of the interfaces."""
    (found,) = [call for call in calls if call.startswith("scripts/serve_all.py ")]
    server, _, interfaces = found.partition(" --interfaces ")
    return server, interfaces


def test_both_together_have_one_certificate_and_fitting_limits(stages: Stages) -> None:
    given = {"TLS_CERTIFICATE": "door.pem", "TLS_KEY": "door.key", "KEYS_FILE": "keys"}
    status, calls, errors = stages.run("serve-all", **given)
    assert status == 1 and "set BISTREAM_API_KEY" in errors and not any("serve_all.py" in call for call in calls)
    _, calls, _ = stages.run("serve-all", **given, BISTREAM_API_KEY="0123456789abcdef", CLIENT_TLS_CA="ca.pem")
    server, interfaces = both_of(calls)
    for call in (server, interfaces):
        assert "--tls-certificate door.pem --tls-key door.key" in call and "--keys-file keys" in call and "0123456789abcdef" not in call
    assert "--server-tls --server-tls-ca ca.pem" in interfaces
    assert "--sessions-per-address 0 --sessions-per-key 0" in server, "all callers have the interfaces' address and key"
    server, _ = both_of(stages.run("serve-all", GATE_LIMITS="--sessions-per-address 3")[1])
    assert "--sessions-per-address 3" in server and "--sessions-per-key" not in server
