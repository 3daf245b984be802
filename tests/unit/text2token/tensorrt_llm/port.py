"""The part of TensorRT-LLM that the engine calls, for tests: its classes with their signatures, and a model of how it behaves.

Names, arguments and defaults are those of the contract; ``test_contract.py`` compares them as it compares the real package. A test drives
it by ``Port.step``: one iteration starts requests for which the cache has room, samples one id for each running one, and answers each.
What is sampled decides ``choose(ids, sampling)``: candidates, best first; the first one that ``embedding_bias`` does not forbid is taken.

Failures, as in TensorRT-LLM: an error of one request is raised where that request is awaited; a fatal one is raised to a single request,
and all others never hear anything again; an abort is answered with an iteration's delay.
"""

from __future__ import annotations

import asyncio
import enum
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from bistream.text2token.engine import TokenSpace
from bistream.text2token.tensorrt_llm.api import FORBIDDEN_BIAS, Api
from bistream.text2token.tensorrt_llm.merged_ids import MergedIds
from tests.unit.text2token.tensorrt_llm.cache import Allocation, Cache, Manager

Choose = Callable[[list[int], "SamplingParams"], Sequence[int]]


class RequestError(RuntimeError):
    pass


@dataclass(kw_only=True)
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: Any = None
    bad_token_ids: list[int] | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    logits_processor: Any = None
    apply_batched_logits_processor: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True

    @property
    def is_greedy(self) -> bool:
        return self.temperature in (None, 0.0) or self.top_k == 1


class CapacitySchedulerPolicy(enum.Enum):
    MAX_UTILIZATION = "MAX_UTILIZATION"
    GUARANTEED_NO_EVICT = "GUARANTEED_NO_EVICT"
    STATIC_BATCH = "STATIC_BATCH"


@dataclass(kw_only=True)
class SchedulerConfig:
    capacity_scheduler_policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    context_chunking_policy: Any = None
    dynamic_batch_config: Any = None


@dataclass(kw_only=True)
class CudaGraphConfig:
    batch_sizes: list[int] | None = None
    max_batch_size: int = 0
    enable_padding: bool = False


@dataclass(kw_only=True)
class KvCacheConfig:
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    max_attention_window: list[int] | None = None
    free_gpu_memory_fraction: float | None = 0.9
    host_cache_size: int | None = None
    event_buffer_max_size: int = 0
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    dtype: str = "auto"
    tokens_per_block: int = 32


class KvCacheRetentionConfig:
    class TokenRangeRetentionConfig:
        def __init__(self, token_start: int, token_end: int | None, priority: int, duration_ms: timedelta | None = None) -> None:
            assert duration_ms is None or isinstance(duration_ms, timedelta)
            self.priority = priority

    def __init__(
        self,
        token_range_retention_configs: list[TokenRangeRetentionConfig],
        decode_retention_priority: int = 35,
        decode_duration_ms: timedelta | None = None,
    ) -> None:
        assert decode_duration_ms is None or isinstance(decode_duration_ms, timedelta)
        self.decode_retention_priority = decode_retention_priority


@dataclass
class TorchLlmArgs:
    """What ``LLM`` takes, most of it by keyword only."""

    model: str
    skip_tokenizer_init: bool = False
    dtype: str = "auto"
    max_batch_size: int | None = None
    max_seq_len: int | None = None
    max_num_tokens: int | None = 8192
    stream_interval: int = 1
    kv_cache_config: KvCacheConfig = field(default_factory=KvCacheConfig)
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    cuda_graph_config: CudaGraphConfig | None = field(default_factory=CudaGraphConfig)
    pipeline_parallel_size: int = 1
    enable_chunked_prefill: bool = False


@dataclass
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    _last_token_ids_len: int = field(default=0, init=False)

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self._last_token_ids_len :]


@dataclass(frozen=True)
class Response:
    ids: tuple[int, ...]
    cached: int
    reason: str | None = None  # set in the last one
    error: Exception | None = None


class GenerationResult:
    """Made in a running event loop, and answered there."""

    def __init__(self, port: Port, sampling: SamplingParams) -> None:
        self.cached_tokens = 0
        self.outputs = [CompletionOutput(0)]
        self._port = port
        self._sampling = sampling
        self._loop = asyncio.get_running_loop()
        self._responses: asyncio.Queue[Response] = asyncio.Queue()
        self._done = False

    def abort(self) -> None:
        self._port.abort(self)

    def __aiter__(self) -> GenerationResult:
        return self

    async def __anext__(self) -> GenerationResult:
        if self._done:
            raise StopAsyncIteration
        self._take(await self._responses.get())
        return self

    def answer(self, response: Response) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._responses.put_nowait, response)

    def _take(self, response: Response) -> None:
        if response.error is not None:
            raise response.error
        output = self.outputs[0]
        self.cached_tokens = response.cached
        output._last_token_ids_len = len(output.token_ids)
        output.token_ids.extend(response.ids)
        if response.reason is None:
            return
        self._done = True
        output.finish_reason = response.reason
        last = output.token_ids[-1] if output.token_ids else None
        if response.reason == "stop" and last in (self._sampling.stop_token_ids or []):
            output.stop_reason = last  # and it is removed, as include_stop_str_in_output is False
            del output.token_ids[-1]
        elif response.reason == "stop" and last == self._sampling.end_id and not self._port.end_id_in_output:
            del output.token_ids[-1]


@dataclass(eq=False)
class Running:
    prompt: list[int]
    sampling: SamplingParams
    result: GenerationResult
    priority: int
    allocation: Allocation | None = None
    output: list[int] = field(default_factory=list)
    is_aborted: bool = False


class LLM:
    """``port`` is set in the subclass that ``Port.api`` makes."""

    port: Port

    def __init__(
        self,
        model: str,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.args = TorchLlmArgs(model, skip_tokenizer_init, dtype, **kwargs)  # an unknown name is a TypeError
        self.port.open(self.args)

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: KvCacheRetentionConfig | None = None,
        disaggregated_params: Any = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
    ) -> GenerationResult:
        assert sampling_params is not None and sampling_params.end_id is not None and streaming
        priority = 35 if kv_cache_retention_config is None else kv_cache_retention_config.decode_retention_priority
        return self.port.submit(self.args, inputs, sampling_params, priority)

    def shutdown(self) -> None:
        self.port.is_shut_down = True


class Port:
    """TensorRT-LLM as a test sees and drives it. requests: prompts and sampling of all requests so far."""

    def __init__(self, merged: MergedIds, choose: Choose, manager: Manager = "v1", end_id_in_output: bool = True) -> None:
        self.merged = merged
        self.choose = choose
        self.manager: Manager = manager
        self.end_id_in_output = end_id_in_output
        self.requests: list[tuple[list[int], SamplingParams]] = []
        self.reject_requests = False  # answer each new request with an error of its own
        self.ignores_bias = False
        self.is_silent = False  # answer nothing any more
        self.is_shut_down = False
        self.cache = Cache(0, 1)
        self._args = TorchLlmArgs("")
        self._is_broken = False
        self._lock = threading.RLock()
        self._waiting: list[Running] = []
        self._running: list[Running] = []

    def api(self, **changes: Any) -> Api:
        llm = type("LLM", (LLM,), {"port": self})
        api = Api(
            llm,
            SamplingParams,
            KvCacheConfig,
            SchedulerConfig,
            CapacitySchedulerPolicy,
            CudaGraphConfig,
            KvCacheRetentionConfig,
            RequestError,
        )
        return replace(api, **changes)

    def open(self, args: TorchLlmArgs) -> None:
        config = args.kv_cache_config
        assert config.enable_block_reuse and config.max_tokens is not None
        assert args.skip_tokenizer_init and args.scheduler_config.capacity_scheduler_policy is CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
        self._args = args
        self.cache = Cache(config.max_tokens // config.tokens_per_block, config.tokens_per_block, self.manager)

    def submit(self, args: TorchLlmArgs, prompt: list[int], sampling: SamplingParams, priority: int) -> GenerationResult:
        if self.is_shut_down:
            raise RuntimeError("LLM is shutting down")
        assert args.max_num_tokens is not None and args.max_seq_len is not None
        if len(prompt) > args.max_num_tokens:
            raise ValueError("The sum of prompt length should not exceed max_num_tokens")
        result = GenerationResult(self, sampling)
        with self._lock:
            self.requests.append((list(prompt), sampling))
            if self.reject_requests or not all(0 <= token_id < self.merged.vocab_size for token_id in prompt):
                result.answer(Response((), 0, error=RequestError("Token ID out of range")))
            elif len(prompt) + sampling.max_tokens > args.max_seq_len:
                result.answer(Response((), 0, error=RequestError("longer than max_seq_len")))
            else:
                self._waiting.append(Running(prompt, sampling, result, priority))
        return result

    def abort(self, result: GenerationResult) -> None:
        with self._lock:
            for running in (*self._waiting, *self._running):
                running.is_aborted |= running.result is result

    def break_down(self) -> None:
        self._is_broken = True

    @property
    def num_active(self) -> int:
        with self._lock:
            return len(self._waiting) + len(self._running)

    def step(self) -> bool:
        """One iteration. Returns False where there was nothing to do."""
        with self._lock:
            if self.is_silent or not (self._waiting or self._running):
                return False
            if self._is_broken:
                self._collapse()
                return True
            self._end_aborted()
            self._start_waiting()
            for running in list(self._running):
                self._sample(running)
            return True

    def _collapse(self) -> None:
        self.is_shut_down = self.is_silent = True
        first = (*self._running, *self._waiting)[0]
        first.result.answer(Response((), 0, error=RuntimeError("CUDA error: an illegal memory access was encountered")))

    def _end_aborted(self) -> None:
        for running in [running for running in (*self._waiting, *self._running) if running.is_aborted]:
            self._finish(running, Response((), 0, "cancelled"))

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < (self._args.max_batch_size or 0):
            running = self._waiting[0]
            running.allocation = self.cache.start(running.prompt, running.sampling.max_tokens)
            if running.allocation is None:
                return  # first come, first served
            self._running.append(self._waiting.pop(0))

    def _sample(self, running: Running) -> None:
        assert running.allocation is not None
        sampling = running.sampling
        bias = None if self.ignores_bias else sampling.embedding_bias
        candidates = self.choose([*running.prompt, *running.output], sampling)
        token_id = next(one for one in candidates if bias is None or bias[one] > FORBIDDEN_BIAS / 2)
        running.output.append(token_id)
        is_stop = token_id == sampling.end_id or token_id in (sampling.stop_token_ids or [])
        reason = "stop" if is_stop else "length" if len(running.output) == sampling.max_tokens else None
        response = Response((token_id,), running.allocation.cached, reason)
        if reason is None:
            running.result.answer(response)
        else:
            self._finish(running, response)

    def _finish(self, running: Running, response: Response) -> None:
        (self._running if running in self._running else self._waiting).remove(running)
        if running.allocation is not None:
            self.cache.finish(running.allocation, running.output, running.priority)
        running.result.answer(response)


def stopping(merged: MergedIds, seed: int = 0, stop_every: int = 6) -> Choose:
    """Greedy requests: a function of the last ids alone, which often prefers a stop id. Others: random ids, whatever their session."""
    space: TokenSpace = merged.space
    generator = random.Random(seed)

    def choose(ids: list[int], sampling: SamplingParams) -> Sequence[int]:
        mixed = sum(ids[-5:]) * 7 + len(ids) * 3
        stop_ids = merged.to_merged(space.specials)
        if not sampling.is_greedy:
            mixed = generator.randrange(1 << 30)
        first = merged.speech_offset + mixed % space.speech_token_size
        preferred = [stop_ids[mixed % 3], *stop_ids] if (mixed // 7) % stop_every == 0 else []
        return [*preferred, first]

    return choose
