"""The way to a TensorRT engine, on a port of TensorRT-LLM's classes: options, shares of the head's bias, refusals in one sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from bistream.checkpoint_files import family_of
from bistream.conversion.engine_build import EngineSizes, build_options
from bistream.conversion.merged import ARCHITECTURES, HEAD_BIAS, write_merged
from bistream.conversion.safetensors_files import load_tensors
from bistream.conversion.tensorrt_llm_checkpoint import Parallelism, Quantization, _share
from bistream.conversion.tensorrt_llm_library import load_library
from bistream.errors import ConfigError
from scripts import build_engine, convert_checkpoint

PORT = Path(__file__).parent / "port"


@pytest.fixture(scope="module", params=("cosyvoice2", "cosyvoice3"))
def model_dir(request: pytest.FixtureRequest, tiny_model_dir: Path, tiny_cosyvoice3_dir: Path) -> Path:
    return tiny_model_dir if request.param == "cosyvoice2" else tiny_cosyvoice3_dir


@pytest.fixture(scope="module")
def merged_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("merged")
    write_merged(model_dir, out, torch.float32)
    return out


def forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The port is on the path."""
    monkeypatch.syspath_prepend(str(PORT))
    forget()
    yield
    forget()


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``trtllm-build`` on the path; what it lacks is in the file ``missing`` beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "trtllm-build"
    code = f'#!/bin/sh\nPYTHONPATH={PORT} exec {sys.executable} {PORT}/builder.py $(cat {folder}/missing) -- "$@"\n'
    program.write_text(code)
    program.chmod(0o755)
    (folder / "missing").write_text("")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def converted(merged_dir: Path, out: Path, *options: str) -> int:
    return convert_checkpoint.main(["tensorrt_llm", "--merged", str(merged_dir), "--out", str(out), *options])


def one_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].endswith("."), lines
    return lines[0]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1, 1), (2, 2, 1), (1, 2, 1), (2, 1, 2)])
def test_every_rank_with_the_head_gets_its_share_of_the_bias(sizes: tuple[int, int, int], merged_dir: Path, tmp_path: Path) -> None:
    tp_size, pp_size, cp_size = sizes
    out = tmp_path / "checkpoint"
    options = ("--tp_size", str(tp_size), "--pp-size", str(pp_size), "--cp_size", str(cp_size), "--dtype", "float32")
    assert converted(merged_dir, out, *options) == 0
    ranks = [load_file(str(out / f"rank{rank}.safetensors")) for rank in range(tp_size * pp_size)]
    heads = ranks[(pp_size - 1) * tp_size :]
    assert torch.equal(torch.cat([rank[HEAD_BIAS] for rank in heads]), load_tensors(merged_dir)[HEAD_BIAS])
    assert all(len(rank[HEAD_BIAS]) == len(rank["lm_head.weight"]) for rank in heads)
    assert not any(HEAD_BIAS in rank for rank in ranks[: (pp_size - 1) * tp_size])
    mapping = json.loads((out / "config.json").read_text())["mapping"]
    assert mapping == {"world_size": tp_size * pp_size * cp_size, "tp_size": tp_size, "pp_size": pp_size, "cp_size": cp_size}


@settings(deadline=None, max_examples=30)
@given(vocab=st.integers(1, 300), tp_size=st.integers(1, 8))
def test_shares_make_the_bias_again_and_what_is_padded_cannot_be_sampled(vocab: int, tp_size: int) -> None:
    bias = torch.arange(vocab, dtype=torch.float32)
    shares = [_share(bias, tp_size, rank) for rank in range(tp_size)]
    assert len({len(share) for share in shares}) == 1
    together = torch.cat(shares)
    assert torch.equal(together[:vocab], bias) and torch.all(together[vocab:] == float("-inf"))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        ((), None),
        (("--use_weight_only",), "W8A16"),
        (("--use-weight-only", "--weight_only_precision", "int4"), "W4A16"),
    ],
)
def test_weight_only_quantization(options: tuple[str, ...], algorithm: str | None, merged_dir: Path, tmp_path: Path) -> None:
    assert converted(merged_dir, tmp_path / "out", *options) == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization"]["quant_algo"] == algorithm and config["dtype"] == "bfloat16"
    assert load_file(str(tmp_path / "out" / "rank0.safetensors"))[HEAD_BIAS].dtype is torch.bfloat16


@pytest.mark.usefixtures("installed")
def test_calibration_uses_what_the_model_says(merged_dir: Path, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bistream.conversion.calibration.write_dataset.__defaults__", (3,))
    texts = tmp_path / "texts"
    texts.write_text("Good evening.\n\nThe weather was clear.\n", encoding="utf-8")
    options = ("--smoothquant", "0.4", "--per_token", "--int8_kv_cache", "--tp_size", "2")
    given = ("--calibration-text", str(texts), "--model-dir", str(model_dir), "--device", "cpu")
    assert converted(merged_dir, tmp_path / "out", *options, *given) == 0
    (call,) = sys.modules["tensorrt_llm.models"].CALLS
    assert call["quant_config"].smoothquant_val == 0.4
    assert call["quant_config"].quant_algo == "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN"
    assert call["quant_config"].kv_cache_quant_algo == "INT8"
    assert Path(call["calib_dataset"]).name == "lambada"
    default = family_of(model_dir).default_instruction
    begin = f"<|sos|>{default}<|endofprompt|>" if default else "<|sos|>"
    assert [sample.split("<|task_id|>")[0] for sample in call["samples"]] == [
        f"{begin}Good evening.",
        f"{begin}The weather was clear.",
        f"{begin}Good evening.",
    ]
    assert all(sample.count("<|s_") > 3 for sample in call["samples"])
    assert call["samples"][0] != call["samples"][2], "the same text is spoken with another seed"
    assert HEAD_BIAS in load_file(str(tmp_path / "out" / "rank1.safetensors"))


@given(st.booleans(), st.booleans())
def test_every_kind_of_smoothquant_has_a_name_of_the_library(per_channel: bool, per_token: bool) -> None:
    name = Quantization(smoothquant=0.5, per_channel=per_channel, per_token=per_token).algorithm
    parts = (f"PER_{'CHANNEL' if per_channel else 'TENSOR'}", "PER_TOKEN" if per_token else "PER_TENSOR")
    assert name == ("W8A8_SQ_PER_TENSOR_PLUGIN" if parts == ("PER_TENSOR",) * 2 else f"W8A8_SQ_{parts[0]}_{parts[1]}_PLUGIN")


def test_without_tensorrt_llm_one_sentence_says_so(merged_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert converted(merged_dir, tmp_path / "out") == 1
    assert "tensorrt_llm is not installed" in one_sentence(capsys)
    assert build_engine.main(["--backend", "pytorch"]) == 1
    assert "tensorrt_llm is not installed" in one_sentence(capsys)
    assert build_engine.main(["--checkpoint", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "tensorrt_llm is not installed" in one_sentence(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tp_size", "3"), "divisor of the 4 attention heads"),
        (("--pp_size", "5"), "divisor of the 2 layers"),
        (("--cp_size", "0"), "--cp_size is 0"),
        (("--smoothquant", "1.5"), "between 0 and 1"),
        (("--smoothquant", "0.5", "--use_weight_only"), "exclude each other"),
        (("--per_token",), "options of --smoothquant"),
        (("--int8_kv_cache",), "need --calibration-text"),
    ],
)
def test_options_that_cannot_work_are_refused_first(
    options: tuple[str, ...], words: str, merged_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert converted(merged_dir, tmp_path / "out", *options) == 1
    assert words in one_sentence(capsys)


@pytest.mark.usefixtures("installed")
def test_what_a_version_lacks_is_named(
    merged_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library = load_library()

    class OldMapping:
        def __init__(self, world_size: int = 1, rank: int = 0, tp_size: int = 1, pp_size: int = 1) -> None: ...

    class FewAlgorithms:
        W8A16 = "W8A16"

    def positional(hf_model_dir: str, dtype: str) -> None: ...

    monkeypatch.setattr("tensorrt_llm.mapping.Mapping", OldMapping)
    assert converted(merged_dir, tmp_path / "out", "--cp_size", "2") == 1
    assert "has no context parallelism" in one_sentence(capsys)
    monkeypatch.setattr("tensorrt_llm.mapping.Mapping", library.Mapping)
    monkeypatch.setattr("tensorrt_llm.quantization.QuantAlgo", FewAlgorithms)
    assert converted(merged_dir, tmp_path / "out", "--use_weight_only", "--weight_only_precision", "int4") == 1
    assert "has no quantization W4A16" in one_sentence(capsys)
    monkeypatch.setattr("tensorrt_llm.models.QWenForCausalLM.from_hugging_face", positional)
    assert converted(merged_dir, tmp_path / "out") == 1
    assert "does not take what 1.2.1 takes for QWenForCausalLM.from_hugging_face" in one_sentence(capsys)
    monkeypatch.delattr("tensorrt_llm.models.QWenForCausalLM")
    assert converted(merged_dir, tmp_path / "out") == 1
    assert "builds no engines" in one_sentence(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("installed")
def test_an_engine_is_built_with_the_sizes_of_the_configuration(merged_dir: Path, tmp_path: Path, builder: Path) -> None:
    assert converted(merged_dir, tmp_path / "checkpoint", "--tp_size", "2") == 0
    settings = ("--set", "max_sessions=96", "--set", "llm_bistream.max_session_tokens=10000", "--set", "token2wav.device=cuda:1")
    arguments = ["--checkpoint", str(tmp_path / "checkpoint"), "--out", str(tmp_path / "engine"), *settings]
    assert build_engine.main(arguments) == 0
    engine = json.loads((tmp_path / "engine" / "config.json").read_text())
    used = {name: value for name, value in engine["arguments"].items() if name.startswith("max_")}
    assert used == {
        "max_batch_size": "96",
        "max_input_len": "10000",
        "max_seq_len": "10000",
        "max_num_tokens": "10000",
        "max_beam_width": "1",
    }
    assert engine["arguments"]["gemm_plugin"] == "bfloat16"
    vocab_size = json.loads((merged_dir / "config.json").read_text())["vocab_size"]
    assert engine["head_bias"] == [vocab_size // 2], "the class that was built has no bias at its head"
    written = (tmp_path / "engine" / "conversion.json").stat().st_mtime_ns
    assert build_engine.main(arguments) == 0
    assert (tmp_path / "engine" / "conversion.json").stat().st_mtime_ns == written, "the same engine was built again"


@pytest.mark.usefixtures("installed")
def test_a_builder_that_lacks_an_option_or_fails_is_one_sentence(
    merged_dir: Path, tmp_path: Path, builder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert converted(merged_dir, tmp_path / "checkpoint") == 0
    arguments = ["--checkpoint", str(tmp_path / "checkpoint"), "--out", str(tmp_path / "engine")]
    (builder / "missing").write_text("use_paged_context_fmha")
    assert build_engine.main(arguments) == 1
    assert "has no option --use_paged_context_fmha" in one_sentence(capfd)
    (builder / "missing").write_text("")
    config = tmp_path / "checkpoint" / "config.json"
    config.write_text(config.read_text().replace(f'"vocab_size": {json.loads(config.read_text())["vocab_size"]}', '"vocab_size": 0'))
    assert build_engine.main(arguments) == 1
    assert capfd.readouterr().err.strip().splitlines()[-1] == (
        "build_engine.py: trtllm-build failed with exit status 3; its messages above say why."
    )
    config.write_text('{"dtype": "bfloat16", "architecture": "Qwen2ForCausalLM"}')
    assert build_engine.main(arguments) == 1
    assert "without the bias of the speech head" in one_sentence(capfd)
    assert not (tmp_path / "engine").exists()


def test_paged_context_attention_is_left_out_in_float32() -> None:
    sizes = EngineSizes(4, 100, 8192)
    assert "use_paged_context_fmha" not in build_options(sizes, "float32", ARCHITECTURES[0], 1)
    assert build_options(sizes, "float16", ARCHITECTURES[0], 1)["use_paged_context_fmha"] == "enable"


def test_a_library_that_cannot_be_imported_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorrt_llm.py").write_text("raise OSError('libcuda.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    with pytest.raises(ConfigError, match=r"cannot be imported \(OSError: libcuda\.so\.1"):
        load_library()
    forget()


def test_ranks_with_the_head() -> None:
    parallelism = Parallelism(tp_size=2, pp_size=3)
    assert [parallelism.is_last_stage(rank) for rank in range(6)] == [False] * 4 + [True] * 2
