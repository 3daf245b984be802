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


def test_without_a_directory_the_checkpoint_is_downloaded(stages: Stages) -> None:
    status, calls, _ = stages.run("0", "0")
    assert status == 0
    assert calls == [f"scripts/download_checkpoint.py {stages.build}/CosyVoice2-0.5B --hub huggingface --family cosyvoice2"]
    assert any("requirements/hub.txt" in call for call in stages.installed()), "the hubs' libraries are installed when they are needed"
    _, calls, _ = stages.run("0", "0", FAMILY="cosyvoice3")
    assert calls == [f"scripts/download_checkpoint.py {stages.build}/Fun-CosyVoice3-0.5B-2512 --hub huggingface --family cosyvoice3"]
    given = {"MODEL_HUB": "modelscope", "MODEL_ID": "iic/CosyVoice2-0.5B", "MODEL_REVISION": "v2", "MODEL_DIR": "/nowhere/model"}
    _, calls, _ = stages.run("0", "0", **given)
    assert calls == [
        "scripts/download_checkpoint.py /nowhere/model --hub modelscope --family cosyvoice2 --model-id iic/CosyVoice2-0.5B --revision v2"
    ]


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="of hosts without NVIDIA's driver")
@pytest.mark.parametrize(
    ("is_there", "pip_has_it", "uv_has_it", "asked"),
    [
        (0, 1, 1, []),
        (1, 0, 1, ["torch==2.13.0+cpu"]),
        (1, 1, 0, ["torch==2.13.0+cpu", "requirements/uv.txt", "--torch-backend cpu torch==2.13.0"]),
        (1, 1, 1, ["torch==2.13.0+cpu", "requirements/uv.txt", "--torch-backend cpu torch==2.13.0", "torch==2.13.0"]),
    ],
)
def test_the_cpu_build_of_pytorch_comes_before_the_one_with_cuda(
    stages: Stages, is_there: int, pip_has_it: int, uv_has_it: int, asked: list[str]
) -> None:
    answers = {"TORCH_IS_THERE": str(is_there), "PIP_HAS_CPU_BUILD": str(pip_has_it), "UV_HAS_CPU_BUILD": str(uv_has_it)}
    status, _, _ = stages.run("setup", **answers)
    assert status == 0
    found = [call for call in stages.installed() if "torch==" in call or "uv.txt" in call]
    assert len(found) == len(asked)
    for call, end in zip(found, asked, strict=True):
        assert call.endswith(end)


def test_a_version_of_pytorch_that_is_named_is_taken_as_it_is(stages: Stages) -> None:
    stages.run("setup", TORCH_REQUIREMENT="/wheels/torch.whl", TORCH_IS_THERE="1")
    assert stages.installed()[0].endswith("/wheels/torch.whl")


def test_a_directory_that_is_there_is_checked_and_nothing_is_installed(stages: Stages, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "llm.pt").touch()
    status, calls, _ = stages.run("0", "0", MODEL_DIR=str(tmp_path / "model"))
    assert (status, calls) == (0, [f"scripts/download_checkpoint.py --check {tmp_path}/model"])
    assert not any("hub.txt" in call for call in stages.installed())


def test_later_stages_use_what_was_downloaded(stages: Stages) -> None:
    _, calls, _ = stages.run("2", "2")
    assert any(f"--model-dir {stages.build}/tiny_checkpoint" in call for call in calls)
    downloaded = stages.build / "CosyVoice2-0.5B"
    downloaded.mkdir(parents=True)
    (downloaded / "llm.pt").touch()
    _, calls, _ = stages.run("2", "2")
    assert [call for call in calls if f"--model-dir {downloaded}" in call] and "make_checkpoint" not in " ".join(calls)


def test_the_torch_engine_needs_no_conversion(stages: Stages) -> None:
    status, calls, error = stages.run("1", "1")
    assert (status, calls, error) == (0, [], "")


def test_a_directory_that_is_not_there_is_refused_by_every_stage_that_reads_it(stages: Stages) -> None:
    for profile in ("torch", "tensorrt_llm"):
        for stage in ("1", "2", "6"):
            status, calls, error = stages.run(stage, stage, MODEL_DIR="/no/such/model", PROFILE=profile)
            assert status == 1 and "MODEL_DIR=/no/such/model bash run.sh 0 0" in error, (profile, stage)
            assert not [call for call in calls if "check" not in call], (profile, stage)


def test_a_hub_that_does_not_exist_is_one_sentence(stages: Stages) -> None:
    status, calls, error = stages.run("0", "0", MODEL_HUB="nowhere")
    assert (status, calls, error) == (1, [], "run.sh: MODEL_HUB is nowhere; set it to huggingface or modelscope\n")


def test_tensorrt_llm_is_converted_checked_and_tested(stages: Stages) -> None:
    status, calls, _ = stages.run("1", "1", PROFILE="tensorrt_llm", TRTLLM_DTYPE="float16", SETTINGS="max_sessions=8")
    assert status == 0
    merged = f"{stages.build}/cosyvoice2_llm"
    assert calls[1:] == [
        f"scripts/convert_checkpoint.py huggingface --model-dir {stages.build}/tiny_checkpoint --out {merged} --dtype float16",
        f"scripts/build_engine.py --backend pytorch --checkpoint {stages.build}/trtllm_checkpoint --out {stages.build}/trtllm_engine "
        "--set max_sessions=8",
        f"scripts/test_engine.py --model-dir {stages.build}/tiny_checkpoint --engine-dir {merged} --dtype float16",
    ]
    _, calls, _ = stages.run("2", "2", PROFILE="tensorrt_llm")
    assert any("--profile tensorrt_llm" in call and f"--set engine_dir={merged}" in call for call in calls)


def test_without_a_directory_the_family_is_asked_for(stages: Stages) -> None:
    other = {"PROFILE": "tensorrt_llm", "FAMILY": "cosyvoice3"}
    status, calls, _ = stages.run("1", "2", **other)
    tiny, merged = f"{stages.build}/tiny_cosyvoice3", f"{stages.build}/cosyvoice3_llm"
    assert status == 0 and calls[0] == f"scripts/make_checkpoint.py --size tiny --family cosyvoice3 {tiny}"
    assert calls[1] == f"scripts/convert_checkpoint.py huggingface --model-dir {tiny} --out {merged} --dtype bfloat16"
    assert f"--model-dir {tiny}" in calls[-1] and f"--set engine_dir={merged}" in calls[-1]
    status, calls, error = stages.run("2", "2", FAMILY="cosyvoice1")
    assert (status, calls) == (1, []) and "set it to cosyvoice2 or cosyvoice3" in error


def test_an_engine_is_built_on_request(stages: Stages) -> None:
    options = {"TRTLLM_BACKEND": "tensorrt", "TRTLLM_CONVERT_ARGUMENTS": "--tp_size 2 --use_weight_only"}
    status, calls, _ = stages.run("1", "1", PROFILE="tensorrt_llm", **options)
    assert status == 0
    (convert,) = [call for call in calls if "convert_checkpoint.py tensorrt_llm" in call]
    assert convert.endswith("--dtype bfloat16 --tp_size 2 --use_weight_only")
    assert calls[-1].startswith("scripts/test_engine.py") and f"--compiled {stages.build}/trtllm_engine" in calls[-1]


def test_a_step_that_fails_ends_the_stage(stages: Stages) -> None:
    options = {"TRTLLM_BACKEND": "tensorrt", "TRTLLM_CONVERT_ARGUMENTS": "--fail-here"}
    status, calls, _ = stages.run("1", "2", PROFILE="tensorrt_llm", **options)
    assert status != 0 and "--fail-here" in calls[-1]


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
    ("arguments", "variables", "decoupled", "client"),
    [
        ((), {}, "True", "bistream say "),
        (("streaming",), {"DECOUPLED_MODE": "False"}, "True", "bistream say "),
        (("offline",), {}, "False", "bistream say-http "),
        ((), {"DECOUPLED_MODE": "False"}, "False", "bistream say-http "),
    ],
)
def test_the_mode_reaches_the_repository_and_the_request(
    arguments: tuple[str, ...], variables: dict[str, str], decoupled: str, client: str, stages: Stages
) -> None:
    _, calls, _ = stages.run("2", "2", *arguments, **variables)
    assert any(f"cosyvoice2.decoupled_mode={decoupled}" in call for call in calls)
    status, calls, _ = stages.run("4", "4", *arguments, **variables)
    assert status == 0 and len(calls) == 1 and client in calls[0]


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


def test_voices_and_doctor_take_the_variables_and_what_follows(stages: Stages, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    known = {"MODEL_DIR": str(tmp_path / "model"), "VOICES_DIR": str(tmp_path / "voices")}
    _, calls, _ = stages.run("voices", "add", "anna", "--reference-audio", "a.wav", "--reference-text", "One two.", **known)
    folders = f"--model-dir {tmp_path}/model --voices-dir {tmp_path}/voices"
    assert calls == [f"-m bistream voices add {folders} anna --reference-audio a.wav --reference-text One two."]
    _, calls, _ = stages.run("voices", "list", **known)
    assert calls == [f"-m bistream voices list --voices-dir {tmp_path}/voices"]
    _, calls, _ = stages.run("doctor", "--text", "Hi.", **known)
    assert calls == [f"-m bistream doctor {tmp_path}/model --text Hi."]
    _, calls, _ = stages.run("2", "2", **known)
    assert any(f"--set voices_dir={tmp_path}/voices" in call for call in calls), "the server finds what is added"
    status, calls, error = stages.run("voices")
    assert (status, calls) == (1, []) and "add|list|remove" in error


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


def test_judging_needs_a_trained_voice_and_speaks_it_through_the_server(stages: Stages, tmp_path: Path) -> None:
    status, calls, error = stages.run("judge")
    assert status != 0 and not calls and "has no trained voice; train one (training/README.md), or set MODEL_DIR" in error
    stages.make(tmp_path / "voice")
    judged = tmp_path / "judged"
    (judged / "nora-b-words").mkdir(parents=True)
    judges = stages.build / "judges" / "bin" / "python"
    judges.parent.mkdir(parents=True)
    judges.write_text(RECORDER)
    judges.chmod(0o755)
    status, calls, error = stages.run("judge", JUDGED=str(judged), JUDGED_SET="b")
    assert status == 0, error
    repository, speaking, judging = calls
    assert f"--model-dir {tmp_path}/voice" in repository and "token2wav.left_context_chunks=4" in repository
    assert (
        "serve.py" in speaking and "voice_quality.py speak --server {grpc} --set b --voice nora --pieces words characters whole" in speaking
    )
    assert f"voice_quality.py judge --python {judges}" in judging and judging.endswith(f"{judged}/nora-b-words/")


def interfaces_of(calls: list[str]) -> str:
    (found,) = [call for call in calls if call.startswith("-m interfaces ")]
    return found


def test_the_interfaces_reach_their_servers_as_the_clients_do(stages: Stages) -> None:
    status, calls, _ = stages.run("gateway", SERVERS_GRPC="a:8001/8003 b:8001")
    found = interfaces_of(calls)
    assert status == 0 and "--server a:8001/8003 --server b:8001" in found and "tls" not in found
    given = {"CLIENT_TLS_CA": "ca.pem", "CLIENT_TLS_CERTIFICATE": "own.pem", "CLIENT_TLS_KEY": "own.key"}
    found = interfaces_of(stages.run("gateway", **given)[1])
    assert "--server-tls-ca ca.pem --server-tls-certificate own.pem --server-tls-key own.key" in found
    assert " --tls-certificate" not in found, "that is the interfaces' own"


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
