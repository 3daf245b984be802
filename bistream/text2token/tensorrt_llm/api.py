"""The names of TensorRT-LLM that the engine calls, imported in one place. Tests give the engine other ones with the same signatures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from bistream.errors import ConfigError
from bistream.text2token.tensorrt_llm.merged_ids import MergedIds
from bistream.text2token.tensorrt_llm.preflight import check_signatures

FORBIDDEN_BIAS = -1e9  # finite, so that it can be added to minus infinity and to itself
SESSION_PRIORITY = 80  # 0 to 100; 35 is the default, so what others leave is displaced first
# MPI that started this process must not be mistaken for TensorRT-LLM's own (all_models/llmapi of its Triton backend does the same).
_MPI_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "MPI_")
SINGLE_PROCESS = "TLLM_WORKER_USE_SINGLE_PROCESS"  # no worker process, so that the speech head is registered where it is needed


@dataclass(frozen=True)
class Api:
    """Classes of ``tensorrt_llm.llmapi``. RequestError: one request failed, the engine goes on.

    has_manager_choice: ``KvCacheConfig`` knows the second cache manager, which keeps no decoded ids, and can be told to use the first.
    """

    LLM: Any
    SamplingParams: Any
    KvCacheConfig: Any
    SchedulerConfig: Any
    CapacitySchedulerPolicy: Any
    CudaGraphConfig: Any
    KvCacheRetentionConfig: Any
    RequestError: type[Exception]
    has_manager_choice: bool = False

    def retention(self, duration_s: float) -> Any:
        """Keep what a session has in the cache, unless memory is needed, for so long after its last turn."""
        duration = timedelta(seconds=duration_s)
        whole = self.KvCacheRetentionConfig.TokenRangeRetentionConfig(0, None, SESSION_PRIORITY, duration)
        return self.KvCacheRetentionConfig([whole], SESSION_PRIORITY, duration)

    def bias(self, vocab_size: int, forbidden: Sequence[int]) -> Any:
        """float32 [vocab_size]: added to the scores, it forbids these ids."""
        import torch  # noqa: PLC0415  (loads torch)

        bias = torch.zeros(vocab_size)
        bias[list(forbidden)] = FORBIDDEN_BIAS
        return bias


def load_api(device: str, ids: MergedIds) -> Api:
    """Import TensorRT-LLM, compare it with the contract, and register the speech head.

    Must be called before anything in this process uses CUDA: TensorRT-LLM computes on the first visible device. Raises ``ConfigError``.
    """
    _select_device(device)
    for name in [name for name in os.environ if name.startswith(_MPI_PREFIXES)]:
        del os.environ[name]
    os.environ[SINGLE_PROCESS] = "1"
    check_signatures()
    from tensorrt_llm import llmapi  # noqa: PLC0415  (takes seconds and needs a GPU's driver)

    from bistream.text2token.tensorrt_llm.speech_head import register_speech_model  # noqa: PLC0415

    register_speech_model(ids.speech_offset, ids.num_head_rows)
    return Api(
        llmapi.LLM,
        llmapi.SamplingParams,
        llmapi.KvCacheConfig,
        llmapi.SchedulerConfig,
        llmapi.CapacitySchedulerPolicy,
        llmapi.CudaGraphConfig,
        llmapi.KvCacheRetentionConfig,
        llmapi.RequestError,
        "use_kv_cache_manager_v2" in llmapi.KvCacheConfig.model_fields,
    )


def _select_device(device: str) -> None:
    """Let this process see one device, before CUDA starts."""
    if device == "cpu":
        raise ConfigError("Engine tensorrt_llm computes on CUDA GPUs only; set device to cuda or engine to torch.")
    index = int(device.partition(":")[2] or 0)
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if visible and index >= len(visible):
        raise ConfigError(f"Parameter 'device' is {device!r}, but CUDA_VISIBLE_DEVICES names {len(visible)} devices; choose one of them.")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[index] if visible else str(index)
