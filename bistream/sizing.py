"""How many sessions the memory of a server's GPUs has room for, and what of it is flow state: decided once, before the server starts.

The measured memory of the networks, graphs and libraries of the released checkpoints is taken off; ``SHARE`` of the rest is for
sessions, and ``LEAST_SHARE`` of all in any case, for smaller networks.
A session takes its part of the KV cache, and flow state for ``SURE_S`` seconds of its speech.
``VOICES_S`` seconds are kept for voice prompts, which sessions share. The remainder is flow state too: speech is remembered longer.

``choose`` computes with numbers alone; ``costs_of`` reads a model directory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
from bistream.errors import ConfigError
from bistream.token2mel.state_budget import AUTO_SESSION_S, language_model_bytes

MOST_SESSIONS = 400  # as in all measurements: beyond them, time is short on every GPU before memory is
SURE_S = 7.0  # of speech that the flow remembers of every session; CosyVoice3 was measured with as many
VOICES_S = 60.0  # six voices of usual length
# Beside weights, KV cache and flow state, on an H100 (docs/log/gpu.md): CUDA contexts of five processes, graphs, working memory
LANGUAGE_MODEL_BYTES, SPEECH_BYTES = 1_200_000_000, 8_500_000_000
# Of a DiT beyond that, for its weights (1.3 GB in float32, for the check of 16 bit) and its largest batches (3 GB). Reckoned, not measured:
# a card of 24 GB, where the same was taken off as for the U-Net, was too small.
DIT_BYTES = 4_000_000_000
SHARE, LEAST_SHARE = 0.95, 0.2
MB = 2**20


@dataclass(frozen=True)
class Gpu:
    index: int
    free_bytes: int


@dataclass(frozen=True)
class Costs:
    """In bytes. weights: of the language model. session: KV cache of a session, which has ``session_tokens`` positions. page: flow state
    of ``page_s`` seconds of audio; 0: the family has no flow. speech: what flow, vocoder and analyses of voices take beside it."""

    weights: int
    session: int
    session_tokens: int
    page: int
    page_s: float = 1.0
    speech: int = SPEECH_BYTES


@dataclass(frozen=True)
class Limits:
    """sessions: at a time. flow_state_mb, reserved_speech_s: as in ``RuntimeConfig``; None: there is no flow on a GPU."""

    sessions: int
    flow_state_mb: int | None = None
    reserved_speech_s: float | None = None


@dataclass(frozen=True)
class _Share:
    """Of one GPU. room: bytes for sessions. each: bytes that a session takes of them. page: of a page; 0: no flow state is there."""

    room: int
    each: int
    page: int


def choose(config: RuntimeConfig, costs: Costs, language_model: Gpu | None, speech: Gpu | None) -> Limits:
    """The most sessions for which the GPUs have memory. language_model, speech: where these compute; None: on the CPU.

    ``kv_cache_tokens``, ``flow_state_mb``, ``reserved_speech_s`` and ``left_context_chunks`` of ``config`` hold where they are not 0; of
    ``max_sessions`` nothing is read. Raises ``ConfigError`` where there is no room for one session.
    """
    seconds = config.reserved_speech_s or max(SURE_S, 3 * config.left_context_chunks * costs.page_s)  # 3: as ``token2mel.stage`` says
    sure, voices = math.ceil(seconds / costs.page_s), math.ceil(VOICES_S / costs.page_s)
    has_flow = costs.page > 0 and speech is not None
    given = config.flow_state_mb * MB // costs.page if has_flow else 0
    shares = list(_shares(config, costs, language_model, speech))
    sessions = MOST_SESSIONS
    if config.kv_cache_tokens:
        sessions = min(sessions, max(1, config.kv_cache_tokens // costs.session_tokens))
    if given:
        sessions = min(sessions, max(1, (given - voices) // sure))
    for share in shares:
        if each := share.each + sure * share.page:
            sessions = min(sessions, (share.room - voices * share.page) // each)
    if sessions < 1:
        raise ConfigError("The GPU has too little free memory for one session; end what else uses it, or set max_sessions by hand.")
    if not has_flow:
        return Limits(sessions)
    most = voices + sessions * max(sure, math.ceil(AUTO_SESSION_S / costs.page_s))
    pages = given or min([most, *((share.room - sessions * share.each) // share.page for share in shares if share.page)])
    reserved_s = max(1, (pages - voices) // sessions) * costs.page_s
    return Limits(sessions, config.flow_state_mb or -(-pages * costs.page // MB), config.reserved_speech_s or reserved_s)


def _shares(config: RuntimeConfig, costs: Costs, language_model: Gpu | None, speech: Gpu | None) -> Iterator[_Share]:
    """Budgets that are given are taken off, and nothing is counted twice."""
    cache = costs.session * config.kv_cache_tokens // costs.session_tokens
    for gpu in {gpu.index: gpu for gpu in (language_model, speech) if gpu is not None}.values():
        free, others, each, page = gpu.free_bytes, 0, 0, 0
        if language_model is not None and gpu.index == language_model.index:
            free, others = free - costs.weights - cache, others + LANGUAGE_MODEL_BYTES
            each = 0 if cache else costs.session
        if speech is not None and gpu.index == speech.index:
            free, others = free - config.flow_state_mb * MB, others + costs.speech
            page = 0 if config.flow_state_mb else costs.page
        yield _Share(max(0, int(SHARE * (free - others)), int(LEAST_SHARE * free)), each, page)


def costs_of(config: RuntimeConfig, session_tokens: int) -> Costs:
    """config: of the model directory, with ``solver_steps`` and ``dtype`` of the flow. Loads torch. Raises as ``read_config``."""
    import torch  # noqa: PLC0415  (a start without a GPU does not need it here)

    from bistream.token2mel.factory import flow_page_bytes, resolve_dtype  # noqa: PLC0415

    checkpoint = read_config(config.model_dir)
    weights, with_session = (language_model_bytes(checkpoint.language_model, tokens) for tokens in (1, 1 + session_tokens))
    page, flow = 0, checkpoint.flow
    if checkpoint.family.flow is not None:
        flow = replace(flow, n_timesteps=config.solver_steps or flow.n_timesteps)
        page = flow_page_bytes(flow, resolve_dtype(config.dtype, torch.device("cuda")))
    speech = SPEECH_BYTES + (DIT_BYTES if checkpoint.family.flow == "dit" else 0)
    return Costs(weights, with_session - weights, session_tokens, page, flow.chunk_tokens / flow.tokens_per_second, speech)
