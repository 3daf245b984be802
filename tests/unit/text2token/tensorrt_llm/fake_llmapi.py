"""A small ``tensorrt_llm.llmapi`` for tests: the names that the engine calls, over a model that a function computes.

A test drives it by ``FakeLibrary.step``: one iteration samples one id for each request in flight, and answers each. What is sampled decides
``choose(ids, sampling)``: candidates, best first; the first one that ``embedding_bias`` does not forbid is taken. Of a prompt the cache has
the longest prefix of what ended requests left: all but the last id.

Failures, as in TensorRT-LLM: an error of one request is raised where that request is awaited; a fatal one is raised to a single request,
and all others never hear anything again; an abort is answered with an iteration's delay.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from bistream.text2token.tensorrt_llm.library import FORBIDDEN_BIAS
from bistream.text2token.tensorrt_llm.merged_ids import MergedIds

Choose = Callable[[list[int], SimpleNamespace], Sequence[int]]  # ids so far, ``SamplingParams``


class RequestError(RuntimeError):
    pass


class KvCacheRetentionConfig:
    """Takes durations, and not numbers."""

    TokenRangeRetentionConfig = staticmethod(lambda start, end, priority, duration: duration.total_seconds())

    def __init__(self, ranges: list[float], priority: int, duration: timedelta) -> None:
        self.ranges, self.duration_s = ranges, duration.total_seconds()


@dataclass
class Completion:
    token_ids_diff: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | None = None


class GenerationResult:
    """Made in a running event loop, and answered there."""

    def __init__(self, library: FakeLibrary, prompt: list[int], sampling: SimpleNamespace) -> None:
        self.library, self.prompt, self.sampling = library, prompt, sampling
        self.decoded: list[int] = []
        self.is_aborted = False
        self.cached_tokens = library.cached(prompt)
        self.outputs = [Completion()]
        self._loop = asyncio.get_running_loop()
        self._answers: asyncio.Queue[Completion | Exception] = asyncio.Queue()

    def abort(self) -> None:
        self.is_aborted = True

    def __aiter__(self) -> GenerationResult:
        return self

    async def __anext__(self) -> GenerationResult:
        if self.outputs[0].finish_reason is not None:
            raise StopAsyncIteration
        answer = await self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        self.outputs = [answer]
        return self

    def answer(self, answer: Completion | Exception) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._answers.put_nowait, answer)


class FakeLibrary:
    """``tensorrt_llm.llmapi`` as the engine sees it, and as a test drives it. requests: all of them so far."""

    SamplingParams = KvCacheConfig = SchedulerConfig = CudaGraphConfig = SimpleNamespace
    CapacitySchedulerPolicy = SimpleNamespace(GUARANTEED_NO_EVICT="GUARANTEED_NO_EVICT")
    KvCacheRetentionConfig = KvCacheRetentionConfig
    RequestError = RequestError

    def __init__(self, merged: MergedIds, choose: Choose, end_id_in_output: bool = True) -> None:
        self.merged = merged
        self.choose = choose
        self.end_id_in_output = end_id_in_output
        self.requests: list[tuple[list[int], SimpleNamespace]] = []
        self.reject_requests = False  # answer each new request with an error of its own
        self.ignores_bias = False
        self.is_silent = False  # answer nothing any more
        self.is_shut_down = False
        self.is_broken = False  # fails fatally at the next step
        self.stored: list[list[int]] = []  # what the cache has
        self.running: list[GenerationResult] = []
        self._lock = threading.RLock()

    def LLM(self, **arguments: Any) -> FakeLibrary:
        self.arguments = SimpleNamespace(**arguments)
        return self

    def shutdown(self) -> None:
        self.is_shut_down = True

    def generate_async(
        self, inputs: list[int], sampling_params: SimpleNamespace, streaming: bool, kv_cache_retention_config: Any
    ) -> GenerationResult:
        assert streaming and len(inputs) + sampling_params.max_tokens <= self.arguments.max_seq_len
        assert all(0 <= token_id < self.merged.vocab_size for token_id in inputs)
        if self.is_shut_down:
            raise RuntimeError("LLM is shutting down")
        with self._lock:
            result = GenerationResult(self, list(inputs), sampling_params)
            self.requests.append((list(inputs), sampling_params))
            if self.reject_requests:
                result.answer(RequestError("Token ID out of range"))
            else:
                self.running.append(result)
        return result

    def cached(self, prompt: list[int]) -> int:
        """Ids that need not be computed; never the last one, whose scores are needed."""
        return max((len(os.path.commonprefix([prompt[:-1], stored])) for stored in self.stored), default=0)

    def step(self) -> bool:
        """One iteration. Returns False where there was nothing to do."""
        with self._lock:
            if self.is_silent or not self.running:
                return False
            if self.is_broken:
                self.is_shut_down = self.is_silent = True
                self.running[0].answer(RuntimeError("CUDA error: an illegal memory access was encountered"))
                return True
            for request in list(self.running):
                completion = Completion(finish_reason="cancelled") if request.is_aborted else self._sample(request)
                if completion.finish_reason is not None:
                    self.running.remove(request)
                    self.stored.append([*request.prompt, *request.decoded][:-1])
                request.answer(completion)
            return True

    def _sample(self, request: GenerationResult) -> Completion:
        sampling = request.sampling
        bias = None if self.ignores_bias else sampling.embedding_bias
        candidates = self.choose([*request.prompt, *request.decoded], sampling)
        token_id = next(one for one in candidates if bias is None or bias[one] > FORBIDDEN_BIAS / 2)
        request.decoded.append(token_id)
        if token_id == sampling.end_id:
            return Completion([token_id] if self.end_id_in_output else [], "stop")
        if token_id in sampling.stop_token_ids:  # removed from the ids
            return Completion([], "stop", token_id)
        return Completion([token_id], "length" if len(request.decoded) == sampling.max_tokens else None)


def stopping(merged: MergedIds, seed: int = 0, stop_every: int = 6) -> Choose:
    """Greedy requests: a function of the last ids alone, which often prefers a stop id. Others: random ids, whatever their session."""
    generator = random.Random(seed)

    def choose(ids: list[int], sampling: SimpleNamespace) -> Sequence[int]:
        mixed = sum(ids[-5:]) * 7 + len(ids) * 3
        stop_ids = merged.to_merged(merged.space.specials)
        if sampling.top_k != 1:
            mixed = generator.randrange(1 << 30)
        first = merged.speech_offset + mixed % merged.space.speech_token_size
        preferred = [stop_ids[mixed % 3], *stop_ids] if (mixed // 7) % stop_every == 0 else []
        return [*preferred, first]

    return choose
