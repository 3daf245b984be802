"""The dataset benchmark and the input of perf_analyzer, on real servers: one that streams and one that answers offline."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tritonclient.grpc as triton

from benchmarks import dataset, perf_analyzer_input
from bistream.keeper.server_process import TritonServer
from tests.triton.conftest import ROOT
from tests.unit.benchmarks.sets import write_jsonl

TEXTS = ["Hi.", "You.", "We."]
NUMPY_TYPES: dict[str, Any] = {"FP32": "<f4", "INT32": "<i4"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path, TEXTS)


def speak(url: str, source: Path, out: Path, mode: str, *more: str) -> dict[str, Any]:
    """The only run of a measurement with two tasks and all files."""
    arguments = ["--server", url, "--dataset", str(source), "--mode", mode, "--num-tasks", "2", "--warm-up", "0", "--out", str(out)]
    assert dataset.main([*arguments, "--wavs", "--upstream-files", *more]) == 0
    (run,) = json.loads((out / "result.json").read_text())["metrics"]["runs"]
    found: dict[str, Any] = run
    return found


@pytest.mark.parametrize("mode", ["streaming", "bistream"])
def test_stage_5_streams_a_data_set(mode: str, grpc_url: str, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = speak(grpc_url, source, out, mode, "--text-rate", "50")
    assert (run["sessions"], run["failed"], run["parts"]) == (3, 0, 1)
    assert run["time_to_first_audio_ms"]["p50"] < run["whole_ms"]["p99"]
    frames = sum(soundfile.info(out / "tasks-2" / f"{name}.wav").frames for name in "abc")
    assert frames / 24000 == pytest.approx(run["audio_s"], abs=1e-3)
    rtf = (out / "tasks-2/rtf-set.txt").read_text()
    assert rtf.startswith(f"Mode: {mode}\nRTF: {run['real_time_factor']:.4f}\ntotal_duration: {run['audio_s']:.3f} seconds\n")
    assert "average_second_chunk_latency_ms: " in rtf
    model = "cosyvoice2" if mode == "streaming" else "cosyvoice2_bistream"
    statistics = (out / "tasks-2/stats_summary-set.txt").read_text()
    requests = re.search(rf"model name is {model} \n.*\nexecuate inference with batch_size 1  total (\d+)", statistics)
    assert requests is not None
    assert int(requests[1]) == 3 if mode == "streaming" else int(requests[1]) > 3, "of this measurement alone; a session has several"
    assert json.loads((out / "tasks-2/model_config-set.json").read_text())["config"]["name"] == model


def test_stage_5_offline(offline_server: TritonServer, source: Path, tmp_path: Path) -> None:
    run = speak(offline_server.grpc_url, source, tmp_path / "out", "offline")
    assert (run["sessions"], run["failed"], run["second_chunk_ms"]) == (3, 0, {})
    assert "latency_99_percentile_ms: " in (tmp_path / "out/tasks-2/rtf-set.txt").read_text()


def perf_analyzer_tensors(request: dict[str, Any], inputs: list[dict[str, Any]]) -> list[triton.InferInput]:
    """As perf_analyzer's docs/input_data.md describes a request: {"content", "shape"} by name of the tensor, content being a list of
    values or {"b64"}: raw little-endian bytes. Types are those of the model's metadata."""
    datatypes = {tensor["name"]: tensor["datatype"] for tensor in inputs}
    tensors = []
    for name, given in request.items():
        datatype, shape, content = datatypes[name], given["shape"], given["content"]
        if datatype == "BYTES":
            array = np.array([text.encode() for text in content], np.object_)
        else:
            array = np.frombuffer(base64.b64decode(content["b64"], validate=True), NUMPY_TYPES[datatype])
        tensors.append(triton.InferInput(name, shape, datatype))
        tensors[-1].set_data_from_numpy(array.reshape(shape))
    return tensors


def test_every_request_of_the_perf_analyzer_input_is_answered(offline_server: TritonServer, source: Path, tmp_path: Path) -> None:
    """perf_analyzer itself cannot be installed here. It asks for metadata, configuration and statistics before it sends requests."""
    file = tmp_path / "input.json"
    assert perf_analyzer_input.main(["--dataset", str(source), "--out", str(file)]) == 0
    content = json.loads(file.read_text())
    assert set(content) == {"data"} and len(content["data"]) == len(TEXTS)
    client = triton.InferenceServerClient(offline_server.grpc_url)
    metadata = client.get_model_metadata("cosyvoice2", as_json=True)
    assert client.get_model_config("cosyvoice2").config.max_batch_size == 0, "shapes are whole, without a batch dimension"
    assert client.get_inference_statistics("cosyvoice2").model_stats
    for request in content["data"]:
        declared = {tensor["name"]: [int(size) for size in tensor["shape"]] for tensor in metadata["inputs"]}
        for name, given in request.items():
            assert len(given["shape"]) == len(declared[name])
            assert all(size in (-1, mine) for size, mine in zip(declared[name], given["shape"], strict=True)), name
        answer = client.infer("cosyvoice2", perf_analyzer_tensors(request, metadata["inputs"]))
        waveform = answer.as_numpy("waveform").reshape(-1)
        assert waveform.size and np.isfinite(waveform).all()
    client.close()


def test_the_data_set_of_this_project_can_be_read(tmp_path: Path) -> None:
    """26 sentences: as many as the concurrency of upstream's measurements goes up to."""
    assert perf_analyzer_input.main(["--dataset", str(ROOT / "assets/dataset.jsonl"), "--out", str(tmp_path / "input.json")]) == 0
    assert len(json.loads((tmp_path / "input.json").read_text())["data"]) == 26
