"""Every class, argument, default and attribute of TensorRT-LLM that the engine relies on. Pure data.

``preflight.py`` compares it with the installed package when the engine starts; a test compares it with a source tree
(``TRTLLM_SRC``). Each row names the file of NVIDIA/TensorRT-LLM and the commit at which it was read. The tree of the pinned version could
not be had, so no row was read at its tag: the commits belong to the development of 1.2, by what the files hold, except where a row says
otherwise. That these names are exported by ``tensorrt_llm.llmapi`` was read at 5ca85af.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

VERSION = "1.2.1"  # the last stable one with the V1 cache manager as default; docs/tensorrt_llm.md
PACKAGE = "tensorrt_llm"

_LLM = "tensorrt_llm/llmapi/llm.py"
_ARGS = "tensorrt_llm/llmapi/llm_args.py"
_RESULT = "tensorrt_llm/executor/result.py"
_RETENTION = "cpp/tensorrt_llm/nanobind/executor/request.cpp"
_EMBEDDING = "tensorrt_llm/_torch/modules/embedding.py"
_MODELS = "tensorrt_llm/_torch/models/modeling_utils.py"
_QWEN = "tensorrt_llm/_torch/models/modeling_qwen.py"
_NO_COMMIT = "1.2 release candidate, commit unknown"


@dataclass(frozen=True)
class Row:
    """One class or function.

    module, name: where the engine takes it from; a method is ``Class.method``.
    file, definition: where it is defined, and its name there (the file may be C++: then the bindings' argument names count).
    arguments: passed by name, or by position in this order. optional: passed only where they exist.
    defaults: arguments that are not passed, with the default that is relied on.
    attributes: what is read of an instance, or of the class.
    """

    module: str
    name: str
    file: str
    definition: str
    read_at: str
    arguments: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()

    @property
    def is_binding(self) -> bool:
        return self.file.endswith(".cpp")


CONTRACT: tuple[Row, ...] = (
    Row(
        "tensorrt_llm.llmapi",
        "LLM.__init__",
        _LLM,
        "BaseLLM.__init__",
        "4c05a74",
        arguments=("model", "skip_tokenizer_init", "dtype"),
        defaults={"tokenizer": None, "trust_remote_code": False, "tensor_parallel_size": 1},
    ),
    Row(  # what LLM takes as **kwargs; any other name is refused by BaseLLM.__init__
        "tensorrt_llm.llmapi",
        "TorchLlmArgs",
        _ARGS,
        "TorchLlmArgs",
        "e00a186, ea35fd6 (its fields in tests/unittest/api_stability/references*/llm.yaml)",
        arguments=(
            "model",
            "skip_tokenizer_init",
            "dtype",
            "max_batch_size",
            "max_seq_len",
            "max_num_tokens",
            "stream_interval",
            "kv_cache_config",
            "scheduler_config",
            "cuda_graph_config",
        ),
        defaults={"pipeline_parallel_size": 1, "enable_chunked_prefill": False},
    ),
    Row(
        "tensorrt_llm.llmapi",
        "LLM.generate_async",
        _LLM,
        "BaseLLM.generate_async",
        "4c05a74",
        arguments=("inputs", "sampling_params", "streaming", "kv_cache_retention_config"),
        defaults={"lora_request": None, "disaggregated_params": None, "scheduling_params": None, "cache_salt": None},
    ),
    Row("tensorrt_llm.llmapi", "LLM.shutdown", _LLM, "BaseLLM.shutdown", "4c05a74"),
    Row(
        "tensorrt_llm.llmapi",
        "SamplingParams",
        "tensorrt_llm/sampling_params.py",
        "SamplingParams",
        "3ba4754 (its argument list in tests/unittest/api_stability/references_committed/sampling_params.yaml)",
        arguments=(
            "end_id",
            "pad_id",
            "max_tokens",
            "stop_token_ids",
            "embedding_bias",
            "temperature",
            "top_k",
            "top_p",
            "detokenize",
            "add_special_tokens",
        ),
        defaults={
            "n": 1,
            "best_of": None,
            "use_beam_search": False,
            "ignore_eos": False,
            "include_stop_str_in_output": False,
            "min_tokens": None,
            "repetition_penalty": None,
        },
    ),
    Row(
        "tensorrt_llm.llmapi",
        "KvCacheConfig",
        _ARGS,
        "KvCacheConfig",
        _NO_COMMIT,
        arguments=(
            "enable_block_reuse",
            "enable_partial_reuse",
            "copy_on_partial_reuse",
            "tokens_per_block",
            "max_tokens",
            "host_cache_size",
            "event_buffer_max_size",
        ),
        optional=("use_kv_cache_manager_v2",),
        defaults={"dtype": "auto", "free_gpu_memory_fraction": 0.9, "max_attention_window": None},
    ),
    Row("tensorrt_llm.llmapi", "SchedulerConfig", _ARGS, "SchedulerConfig", _NO_COMMIT, arguments=("capacity_scheduler_policy",)),
    Row(
        "tensorrt_llm.llmapi",
        "CapacitySchedulerPolicy",
        _ARGS,
        "CapacitySchedulerPolicy",
        _NO_COMMIT,
        attributes=("GUARANTEED_NO_EVICT",),
    ),
    Row("tensorrt_llm.llmapi", "CudaGraphConfig", _ARGS, "CudaGraphConfig", _NO_COMMIT, arguments=("batch_sizes", "enable_padding")),
    Row(
        "tensorrt_llm.llmapi",
        "KvCacheRetentionConfig",
        _RETENTION,
        "KvCacheRetentionConfig",
        _NO_COMMIT,
        arguments=("token_range_retention_configs", "decode_retention_priority", "decode_duration_ms"),
        attributes=("TokenRangeRetentionConfig",),
    ),
    Row(
        "tensorrt_llm.llmapi",
        "KvCacheRetentionConfig.TokenRangeRetentionConfig",
        _RETENTION,
        "KvCacheRetentionConfig",
        _NO_COMMIT,
        arguments=("token_start", "token_end", "priority", "duration_ms"),  # the last one a timedelta
    ),
    Row(
        "tensorrt_llm.executor.result",
        "GenerationResult",
        _RESULT,
        "GenerationResult",
        "a678b91",
        attributes=("abort", "outputs", "cached_tokens", "__aiter__", "__anext__"),
    ),
    Row(
        "tensorrt_llm.executor.result",
        "CompletionOutput",
        _RESULT,
        "CompletionOutput",
        "a678b91",
        attributes=("token_ids_diff", "finish_reason", "stop_reason"),
    ),
    Row("tensorrt_llm.llmapi", "RequestError", "tensorrt_llm/executor/utils.py", "RequestError", _NO_COMMIT),
    Row(
        "tensorrt_llm._torch.modules.embedding",
        "LMHead",
        _EMBEDDING,
        "LMHead",
        _NO_COMMIT,
        arguments=("num_embeddings", "embedding_dim", "dtype"),
        defaults={"mapping": None, "tensor_parallel_mode": None, "gather_output": False},
        attributes=("forward", "load_weights", "vocab_size_padded", "num_embeddings"),
    ),
    Row(
        "tensorrt_llm._torch.models.modeling_utils", "register_auto_model", _MODELS, "register_auto_model", _NO_COMMIT, arguments=("name",)
    ),
    Row(
        "tensorrt_llm._torch.models.modeling_utils",
        "DecoderModelForCausalLM",
        _MODELS,
        "DecoderModelForCausalLM",
        _NO_COMMIT,
        attributes=("lm_head", "epilogue", "model_config", "load_weights"),
    ),
    Row(
        "tensorrt_llm._torch.models.modeling_qwen",
        "Qwen2ForCausalLM",
        _QWEN,
        "Qwen2ForCausalLM",
        "unknown commit, 1.0",
        arguments=("model_config",),
    ),
)
