"""The contract with TensorRT-LLM: the port keeps it, a change of it is detected, and the real package keeps it where there is one.

``TRTLLM_SRC``: the root of a source tree of NVIDIA/TensorRT-LLM, or the site-packages folder of an installed wheel, which has no C++.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from bistream.text2token.tensorrt_llm.contract import CONTRACT, PACKAGE, VERSION, Row
from bistream.text2token.tensorrt_llm.preflight import find
from bistream.text2token.tensorrt_llm.signatures import differences, inspected
from tests.unit.text2token.tensorrt_llm import port
from tests.unit.text2token.tensorrt_llm.source_tree import found_in

SOURCE = os.environ.get("TRTLLM_SRC", "")
IDS = [f"{row.module}.{row.name}" for row in CONTRACT]
ON_GPU_ONLY = "_torch"  # modules of the network, which the port does not model


def row_of(name: str) -> Row:
    return next(row for row in CONTRACT if row.name == name)


@pytest.mark.parametrize("row", [row for row in CONTRACT if ON_GPU_ONLY not in row.module], ids=lambda row: row.name)
def test_the_port_keeps_the_contract(row: Row) -> None:
    """So a test over the port cannot pass with a call that the contract does not have."""
    target: Any = port
    for name in row.name.split("."):
        target = getattr(target, name)
    assert list(differences(row, inspected(target, row))) == []


def test_every_row_says_where_it_was_read() -> None:
    assert all(row.file.endswith((".py", ".cpp")) and row.read_at and row.definition for row in CONTRACT)
    assert len(set(IDS)) == len(IDS) and VERSION.count(".") == 2


@pytest.mark.parametrize("row", CONTRACT, ids=IDS)
def test_a_source_tree_keeps_the_contract(row: Row) -> None:
    if not SOURCE:
        pytest.skip("TRTLLM_SRC is not set: no source tree of TensorRT-LLM to compare with")
    found = found_in(Path(SOURCE), row)
    if found is None and row.is_binding and not (Path(SOURCE) / "cpp").is_dir():
        pytest.skip("an installed wheel has no C++ source")
    assert found is not None, f"{row.file} has no {row.definition}"
    assert list(differences(row, found)) == []


@pytest.mark.parametrize("row", CONTRACT, ids=IDS)
def test_the_installed_package_keeps_the_contract(row: Row) -> None:
    if importlib.util.find_spec(PACKAGE) is None:
        pytest.skip("tensorrt_llm is not installed")
    assert list(differences(row, inspected(find(row), row))) == []


LLM_FILE = '''
class BaseLLM:
    def __init__(self, model, tokenizer=None, skip_tokenizer_init: bool = False, trust_remote_code=False,
                 tensor_parallel_size: int = 1, dtype: str = "auto", **kwargs) -> None:
        self.args = kwargs

    @some_decorator("LLM.generate_async")
    def generate_async(self, inputs, sampling_params=None, lora_request=None, streaming: bool = False,
                       kv_cache_retention_config=None, disaggregated_params=None, scheduling_params=None,
                       cache_salt=None):
        """Text."""

    def shutdown(self) -> None: ...


class LLM(BaseLLM): ...
'''
ARGS_FILE = """
class StrictBaseModel(BaseModel): ...


@mirror(_KvCacheConfig)
class KvCacheConfig(StrictBaseModel, PybindMirror):
    enable_block_reuse: bool = Field(default=True, description="a = b")
    max_tokens: Optional[int] = Field(default=None)
    free_gpu_memory_fraction: Optional[float] = Field(default=0.9)
    max_attention_window: Optional[List[int]] = None
    host_cache_size: Optional[int] = Field(None, description="text")
    event_buffer_max_size: int = 0
    enable_partial_reuse: bool = Field(default=True)
    copy_on_partial_reuse: bool = Field(default=True)
    dtype: str = Field(default="auto")
    tokens_per_block: int = Field(default=32)

    def _to_pybind(self): ...


class BaseLlmArgs(StrictBaseModel):
    model: Union[str, Path]
    skip_tokenizer_init: bool = False
    dtype: str = "auto"
    max_batch_size: Optional[int] = None
    max_seq_len: Optional[int] = None
    max_num_tokens: Optional[int] = 8192
    stream_interval: int = 1
    pipeline_parallel_size: int = 1
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    scheduler_config: SchedulerConfig = Field(default_factory=SchedulerConfig)


class TorchLlmArgs(BaseLlmArgs):
    cuda_graph_config: Optional[CudaGraphConfig] = None
    enable_chunked_prefill: bool = Field(default=False)
    _private: int = 3
"""
RESULT_FILE = """
class GenerationResultBase:
    def __init__(self, id: int):
        self.cached_tokens = 0

    @property
    def outputs(self): ...


class GenerationResult(GenerationResultBase):
    def abort(self) -> None: ...
    def __aiter__(self): ...
    async def __anext__(self): ...
"""
BINDING_FILE = """
nb::class_<tle::KvCacheRetentionConfig> kvCacheRetentionConfig(m, "KvCacheRetentionConfig");
nb::class_<A>(kvCacheRetentionConfig, "TokenRangeRetentionConfig")
    .def(nb::init<int>(), nb::arg("token_start"), nb::arg("token_end"), nb::arg("priority"), nb::arg("duration_ms") = nb::none());
kvCacheRetentionConfig.def(nb::init<int>(), nb::arg("token_range_retention_configs"),
    nb::arg("decode_retention_priority") = 35, nb::arg("decode_duration_ms") = nb::none());
"""
FILES = {
    "tensorrt_llm/llmapi/llm.py": LLM_FILE,
    "tensorrt_llm/llmapi/llm_args.py": ARGS_FILE,
    "tensorrt_llm/executor/result.py": RESULT_FILE,
    "cpp/tensorrt_llm/nanobind/executor/request.cpp": BINDING_FILE,
}
READ = ["LLM.__init__", "LLM.generate_async", "LLM.shutdown", "TorchLlmArgs", "KvCacheConfig", "GenerationResult", "KvCacheRetentionConfig"]


def clauses(tree: Path, name: str, old: str = "", new: str = "") -> list[str]:
    """What differs in a small tree, after ``old`` was replaced with ``new`` everywhere."""
    for file, text in FILES.items():
        path = tree / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(old, new) if old else text, encoding="utf-8")
    found = found_in(tree, row_of(name))
    return ["missing"] if found is None else list(differences(row_of(name), found))


@pytest.mark.parametrize("name", READ)
def test_a_tree_that_fits_has_no_differences(tmp_path: Path, name: str) -> None:
    assert clauses(tmp_path, name) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "clause"),
    [
        ("LLM.generate_async", "kv_cache_retention_config=None, ", "", "takes no argument kv_cache_retention_config"),
        ("LLM.generate_async", "cache_salt=None", "*, cache_salt", "requires the argument cache_salt"),
        ("LLM.generate_async", "cache_salt=None", 'cache_salt="all"', "has 'all' as default of cache_salt instead of None"),
        ("LLM.generate_async", "cache_salt=None", "cache_salt=None, tenant=compute(), *, owner", "requires the argument owner"),
        ("LLM.shutdown", "def shutdown", "def stop", "missing"),
        ("LLM.__init__", "skip_tokenizer_init: bool = False", "skip: bool = False", ""),  # in TorchLlmArgs, as all of **kwargs
        ("TorchLlmArgs", "skip_tokenizer_init: bool = False", "skip: bool = False", "takes no argument skip_tokenizer_init"),
        ("TorchLlmArgs", "stream_interval: int = 1", "stream_interval_ms: int = 1", "takes no argument stream_interval"),
        (
            "TorchLlmArgs",
            "enable_chunked_prefill: bool = Field(default=False)",
            "enable_chunked_prefill: bool = Field(default=True)",
            "True",
        ),
        ("TorchLlmArgs", "_private: int = 3", "license_key: str = Field(...)", "requires the argument license_key"),
        ("TorchLlmArgs", "TorchLlmArgs(BaseLlmArgs)", "TorchLlmArgs(OtherArgs)", "takes no argument model"),
        ("KvCacheConfig", "tokens_per_block", "page_size", "takes no argument tokens_per_block"),
        ("KvCacheConfig", "Field(default=0.9)", "Field(default=0.5)", "has 0.5 as default of free_gpu_memory_fraction"),
        ("KvCacheConfig", 'Field(default="auto")', "Field(default=best_dtype())", "a computed value as default of dtype"),
        ("KvCacheConfig", "class KvCacheConfig", "class CacheConfig", "missing"),
        ("GenerationResult", "self.cached_tokens", "self.reused_tokens", "has no cached_tokens"),
        ("GenerationResult", "def abort", "def cancel", "has no abort"),
        ("KvCacheRetentionConfig", "decode_duration_ms", "decode_seconds", "takes no argument decode_duration_ms"),
    ],
)
def test_a_change_is_detected(tmp_path: Path, name: str, old: str, new: str, clause: str) -> None:
    found = clauses(tmp_path, name, old, new)
    assert any(clause in text for text in found) if clause else found == []


def test_a_file_that_moved_is_missing(tmp_path: Path) -> None:
    assert found_in(tmp_path, row_of("SamplingParams")) is None


@pytest.mark.parametrize(
    ("name", "change", "clause"),
    [
        ("SamplingParams", {"stop_token_ids": "stop_ids"}, "takes no argument stop_token_ids"),
        ("CudaGraphConfig", {"enable_padding": "pad"}, "takes no argument enable_padding"),
    ],
)
def test_a_change_of_an_installed_class_is_detected(name: str, change: dict[str, str], clause: str) -> None:
    names = [field.name for field in dataclasses.fields(getattr(port, name))]
    new = dataclasses.make_dataclass(name, [(change.get(one, one), object, dataclasses.field(default=None)) for one in names])
    assert any(clause in text for text in differences(row_of(name), inspected(new, row_of(name))))
