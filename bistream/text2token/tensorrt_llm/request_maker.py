"""Builds the arguments of TensorRT-LLM's calls: once those of ``LLM``, and for every request those of ``generate_async``."""

from __future__ import annotations

from typing import Any

from bistream.text2token.engine import SamplingSpec
from bistream.text2token.tensorrt_llm.api import Api
from bistream.text2token.tensorrt_llm.merged_ids import MergedIds
from bistream.text2token.tensorrt_llm.sequences import Sizes
from bistream.text2token.tensorrt_llm.turn_rules import Request

GRAPH_BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)  # of decoding requests alone; other steps run without a graph
LEAST_STEP_TOKENS = 8192  # TensorRT-LLM's default of max_num_tokens
SMALLEST_TEMPERATURE = 1e-4  # below it sampling is greedy, as in the torch engine


def make_llm(api: Api, engine_dir: str, dtype: str, sizes: Sizes) -> Any:
    """Load the merged checkpoint and start TensorRT-LLM. dtype: auto | float32 | bfloat16 | float16.

    Without enough memory it raises what TensorRT-LLM raises. The cache is at most ``free_gpu_memory_fraction`` (0.9) of the free memory.
    """
    manager = {"use_kv_cache_manager_v2": False} if api.has_manager_choice else {}
    cache = api.KvCacheConfig(
        enable_block_reuse=True,
        enable_partial_reuse=True,
        copy_on_partial_reuse=True,
        tokens_per_block=sizes.tokens_per_block,
        max_tokens=sizes.cache_tokens,
        host_cache_size=0,  # with off-loading to the host, 1.2 release candidates mixed up sessions (NVIDIA/TensorRT-LLM#8813)
        event_buffer_max_size=0,
        **manager,
    )
    sizes_of_graphs = [size for size in GRAPH_BATCH_SIZES if size < sizes.max_sessions] + [sizes.max_sessions]
    return api.LLM(
        model=engine_dir,
        skip_tokenizer_init=True,
        dtype=dtype,
        max_batch_size=sizes.max_sessions,
        max_seq_len=sizes.longest_sequence,
        max_num_tokens=max(LEAST_STEP_TOKENS, sizes.longest_sequence),  # a prompt that is longer would be refused
        stream_interval=1,
        kv_cache_config=cache,
        scheduler_config=api.SchedulerConfig(capacity_scheduler_policy=api.CapacitySchedulerPolicy.GUARANTEED_NO_EVICT),
        cuda_graph_config=api.CudaGraphConfig(batch_sizes=sizes_of_graphs, enable_padding=True),
    )


class RequestMaker:
    """retention_s: how long a session's blocks keep their priority in the cache after its last turn."""

    def __init__(self, api: Api, ids: MergedIds, retention_s: float) -> None:
        self._api = api
        self._ids = ids
        self._retention = api.retention(retention_s)
        self._biases: dict[frozenset[int], Any] = {}  # one object for each set: TensorRT-LLM recognizes equal ones by identity

    def arguments(self, prompt: list[int], request: Request, spec: SamplingSpec) -> dict[str, Any]:
        """Those of ``LLM.generate_async``; prompt: the whole sequence, merged ids."""
        space = self._ids.space
        (end_id,), others = self._ids.to_merged([space.eos]), self._ids.to_merged(sorted(space.specials_but(space.eos)))
        sampling = self._api.SamplingParams(
            end_id=end_id,
            pad_id=end_id,
            max_tokens=request.max_tokens,
            stop_token_ids=others,
            embedding_bias=self._bias(request.masked),
            detokenize=False,
            add_special_tokens=False,
            **_sampling(spec),
        )
        return {
            "inputs": prompt,
            "sampling_params": sampling,
            "streaming": True,
            "kv_cache_retention_config": self._retention,
        }

    def _bias(self, masked: frozenset[int]) -> Any:
        if not masked:
            return None
        if masked not in self._biases:
            self._biases[masked] = self._api.bias(self._ids.vocab_size, self._ids.to_merged(sorted(masked)))
        return self._biases[masked]


def _sampling(spec: SamplingSpec) -> dict[str, Any]:
    if spec.temperature < SMALLEST_TEMPERATURE:
        return {"temperature": None, "top_k": 1, "top_p": None}  # greedy in every version
    return {"temperature": spec.temperature, "top_k": spec.top_k, "top_p": spec.top_p}
