"""The calls of TensorRT-LLM: its import, its start, and the arguments of a request. Nothing else of the engine knows its names.

``llmapi`` is the module ``tensorrt_llm.llmapi``; tests give one of their own. Names and arguments are those of version 1.2, read in files
of its development (docs/tensorrt_llm.md).
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch

from bistream.errors import ConfigError
from bistream.text2token.engine import SamplingSpec
from bistream.text2token.tensorrt_llm.merged_ids import MergedIds
from bistream.text2token.tensorrt_llm.preflight import WHERE, check_installed
from bistream.text2token.tensorrt_llm.sequences import Sizes
from bistream.text2token.tensorrt_llm.turn_rules import Request

FORBIDDEN_BIAS = -1e9  # finite, so that it can be added to minus infinity and to itself
SESSION_PRIORITY = 80  # 0 to 100; 35 is the default, so what others leave is displaced first
SINGLE_PROCESS = "TLLM_WORKER_USE_SINGLE_PROCESS"  # no worker process: the speech head is registered in this one
_MPI_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "MPI_")  # MPI that started this process must not be taken for TensorRT-LLM's own

GRAPH_BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)  # of decoding requests alone; other steps run without a graph
LEAST_STEP_TOKENS = 8192  # TensorRT-LLM's default of max_num_tokens
SMALLEST_TEMPERATURE = 1e-4  # below it sampling is greedy, as in the torch engine


def load_llmapi(device: str, ids: MergedIds) -> Any:
    """Import ``tensorrt_llm.llmapi`` and register the speech head. Raises ``ConfigError``.

    Must be called before anything in this process uses CUDA: TensorRT-LLM computes on the first visible device.
    """
    check_installed()
    _select_device(device)
    for name in [name for name in os.environ if name.startswith(_MPI_PREFIXES)]:
        del os.environ[name]
    os.environ[SINGLE_PROCESS] = "1"
    try:
        from tensorrt_llm import llmapi  # noqa: PLC0415  (takes seconds and needs a GPU's driver)

        from bistream.text2token.tensorrt_llm.speech_head import register_speech_model  # noqa: PLC0415

        register_speech_model(ids.speech_offset, ids.num_head_rows)
    except Exception as error:  # a library or driver that is missing fails in any way
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"TensorRT-LLM cannot be imported ({type(error).__name__}: {reason}); repair it, or use {WHERE}.") from error
    return llmapi


def _select_device(device: str) -> None:
    """Let this process see one device, before CUDA starts."""
    if device == "cpu":
        raise ConfigError("Engine tensorrt_llm computes on CUDA GPUs only; set device to cuda or engine to torch.")
    index = int(device.partition(":")[2] or 0)
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if visible and index >= len(visible):
        raise ConfigError(f"Parameter 'device' is {device!r}, but CUDA_VISIBLE_DEVICES names {len(visible)} devices; choose one of them.")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[index] if visible else str(index)


def make_llm(llmapi: Any, engine_dir: str, dtype: str, sizes: Sizes) -> Any:
    """Load the merged checkpoint and start TensorRT-LLM. dtype: auto | float32 | bfloat16 | float16.

    Without enough memory it raises what TensorRT-LLM raises. The cache is at most ``free_gpu_memory_fraction`` (0.9) of the free memory.
    """
    cache = llmapi.KvCacheConfig(
        enable_block_reuse=True,
        enable_partial_reuse=True,
        copy_on_partial_reuse=True,
        tokens_per_block=sizes.tokens_per_block,
        max_tokens=sizes.cache_tokens,
        host_cache_size=0,  # with off-loading to the host, 1.2 release candidates mixed up sessions (NVIDIA/TensorRT-LLM#8813)
        event_buffer_max_size=0,
    )
    sizes_of_graphs = [size for size in GRAPH_BATCH_SIZES if size < sizes.max_sessions] + [sizes.max_sessions]
    return llmapi.LLM(
        model=engine_dir,
        skip_tokenizer_init=True,
        dtype=dtype,
        max_batch_size=sizes.max_sessions,
        max_seq_len=sizes.longest_sequence,
        max_num_tokens=max(LEAST_STEP_TOKENS, sizes.longest_sequence),  # a prompt that is longer would be refused
        stream_interval=1,
        kv_cache_config=cache,
        scheduler_config=llmapi.SchedulerConfig(capacity_scheduler_policy=llmapi.CapacitySchedulerPolicy.GUARANTEED_NO_EVICT),
        cuda_graph_config=llmapi.CudaGraphConfig(batch_sizes=sizes_of_graphs, enable_padding=True),
    )


class RequestMaker:
    """retention_s: how long a session's blocks keep their priority in the cache after its last turn. temperature: the usual one."""

    def __init__(self, llmapi: Any, ids: MergedIds, retention_s: float, temperature: float) -> None:
        self._llmapi = llmapi
        self._ids = ids
        self._temperature = temperature
        duration, retention = timedelta(seconds=retention_s), llmapi.KvCacheRetentionConfig
        whole = retention.TokenRangeRetentionConfig(0, None, SESSION_PRIORITY, duration)
        self._retention = retention([whole], SESSION_PRIORITY, duration)
        self._biases: dict[frozenset[int], Any] = {}  # one object for each set: TensorRT-LLM recognizes equal ones by identity

    def arguments(self, prompt: list[int], request: Request, spec: SamplingSpec) -> dict[str, Any]:
        """Those of ``LLM.generate_async``; prompt: the whole sequence, merged ids."""
        space = self._ids.space
        (end_id,), others = self._ids.to_merged([space.eos]), self._ids.to_merged(sorted(space.specials_but(space.eos)))
        greedy = spec.temperature < SMALLEST_TEMPERATURE
        sampling = self._llmapi.SamplingParams(
            end_id=end_id,
            pad_id=end_id,
            max_tokens=request.max_tokens,
            stop_token_ids=others,
            embedding_bias=self._bias(request.masked),
            detokenize=False,
            add_special_tokens=False,
            temperature=None if greedy else self._temperature * spec.temperature,
            top_k=1 if greedy else spec.top_k,
            top_p=None if greedy else spec.top_p,
        )
        return {"inputs": prompt, "sampling_params": sampling, "streaming": True, "kv_cache_retention_config": self._retention}

    def _bias(self, masked: frozenset[int]) -> Any:
        """float32 [vocab_size], added to the scores; None where nothing is masked."""
        if masked and masked not in self._biases:
            self._biases[masked] = torch.zeros(self._ids.vocab_size)
            self._biases[masked][self._ids.to_merged(sorted(masked))] = FORBIDDEN_BIAS
        return self._biases.get(masked)
