"""Which character each head of a language model attends to while it makes each speech token. The plain network, whole sessions at once."""

from __future__ import annotations

import queue
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bistream.checkpoint import read_config
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.text.text_in import TextIn
from bistream.text2token.attention import attend_causal
from bistream.text2token.engine import Engine, EngineSequence, SamplingSpec, TurnLimits, TurnResult, TurnSink
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.factory import load_parts
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.sampler import RepetitionAwareSampler
from bistream.text2token.service import LanguageModelStart, SpeechTokenService
from bistream.text2token.step_runner import EagerRunner
from bistream.text2token.text_reading import Head
from bistream.text2token.torch_engine import TorchEngine
from bistream.text2token.weights import load_weights
from bistream.types import GenerationOptions, SpeechTokens, VoicePrompt
from bistream.voice.spk2info import read_spk2info

_PATIENCE_S = 600.0
_COST_ROWS, _COST_STEPS = (1, 16), 20
_CONTEXT, _TEXTS, _LONGEST = 400, 60, 4000


@dataclass
class Row:
    """What one session fed the model: ids in order, and which of them the model made itself."""

    ids: list[int] = field(default_factory=list)
    made: list[bool] = field(default_factory=list)

    def add(self, ids: Sequence[int], are_made: bool) -> None:
        self.ids += ids
        self.made += [are_made] * len(ids)


class _RecordingSink:
    def __init__(self, sink: TurnSink, row: Row) -> None:
        self._sink, self._row = sink, row

    def on_ids(self, ids: Sequence[int]) -> None:
        self._row.add(ids, True)
        self._sink.on_ids(ids)

    def on_end(self, result: TurnResult) -> None:
        self._sink.on_end(result)


class _RecordingSequence:
    def __init__(self, sequence: EngineSequence, row: Row) -> None:
        self._sequence, self._row = sequence, row
        self.cancel, self.close = sequence.cancel, sequence.close

    def turn(self, append_ids: Sequence[int], limits: TurnLimits, sink: TurnSink) -> None:
        self._row.add(append_ids, False)
        self._sequence.turn(append_ids, limits, _RecordingSink(sink, self._row))


class RecordingEngine:
    """An engine that keeps the row of its last session."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.row = Row()

    def open(self, session_id: str, spec: SamplingSpec, max_ids: int) -> _RecordingSequence:
        self.row = Row()
        return _RecordingSequence(self._engine.open(session_id, spec, max_ids), self.row)

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)


@dataclass(frozen=True)
class Attended:
    """Characters, float32 [heads, speech tokens]: of the text token with the most weight, and the mean over all by their weights."""

    most: NDArray[np.float32]
    mean: NDArray[np.float32]


class AttendingModel:
    """The language model of a model directory, on one thread of the CPU; ``close`` it. heads: names, layer by layer."""

    def __init__(self, model_dir: Path, speaker_id: str) -> None:
        torch.set_num_threads(1)
        config = RuntimeConfig(model_dir=str(model_dir), device="cpu", num_threads=1, max_sessions=2)
        parts = load_parts(config)
        self._engine = RecordingEngine(parts.engine)
        self._service = SpeechTokenService(config, parts=replace(parts, engine=self._engine))  # type: ignore[arg-type]
        self._tokenizer, sizes = parts.tokenizer, read_config(model_dir).language_model
        self._model = Qwen2Model(sizes, load_weights(model_dir, sizes, torch.device("cpu"), torch.float32))
        self.prompt: VoicePrompt = read_spk2info(model_dir / "spk2info.pt", lambda ids: "")[speaker_id]
        self.heads = [
            f"layer {layer}, head {head}" for layer in range(sizes.num_hidden_layers) for head in range(sizes.num_attention_heads)
        ]

    def close(self) -> None:
        self._service.close()

    def tokens(self, pieces: Sequence[str], seed: int, is_whole: bool) -> list[int]:
        """Speech tokens of a session, as the server makes them. Raises ``BistreamError``."""
        messages: queue.SimpleQueue[SpeechTokens | BistreamError] = queue.SimpleQueue()
        prompt, text = self.prompt, "".join(pieces).encode()
        start = LanguageModelStart(
            "s", text if is_whole else b"", is_whole, prompt.prompt_text, prompt.speech_tokens, GenerationOptions(seed=seed)
        )
        self._service.start(start, messages.put)
        for piece in () if is_whole else (*pieces, ""):
            self._service.append("s", piece.encode(), not piece)
        tokens: list[int] = []
        while True:
            message = messages.get(timeout=_PATIENCE_S)
            if isinstance(message, BistreamError):
                raise message
            tokens += message.token_ids
            if message.is_final:
                return tokens

    @torch.inference_mode()
    def attended(self, text: str) -> Attended:
        """Of the last session, which spoke ``text``."""
        row = self._engine.row
        weights: list[Tensor] = []

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            weights.append(_weights(query, key))
            return attend_causal(query, key, value)

        ids = torch.tensor(row.ids)
        self._model.forward_embedded(self._model.embed(ids), torch.arange(len(ids)), attend)
        making = np.flatnonzero(row.made) - 1  # the place that predicts each speech token
        places, characters = self._new_text(row.ids, text)
        seen = torch.cat(weights)[:, making][:, :, places]  # [heads, tokens, text tokens]
        middles = torch.tensor(characters, dtype=torch.float32)
        mean = (seen * middles).sum(-1) / seen.sum(-1).clamp(min=1e-9)
        return Attended(middles[seen.argmax(-1)].numpy(), mean.numpy())

    def _new_text(self, ids: Sequence[int], text: str) -> tuple[list[int], list[float]]:
        """Places of the session's own text tokens in the row, and the character in the middle of each."""
        tokens = (reader := TextIn(self._tokenizer)).push(text.encode()) + reader.finish()
        texts = [place for place, number in enumerate(ids) if number < self._model.space.text_vocab_size]
        own = texts[len(texts) - len(tokens) :]
        assert [ids[place] for place in own] == [token.id for token in tokens], "the text of another session"
        ends = [token.end_char for token in tokens]
        return own, [(begin + end) / 2 for begin, end in zip([0, *ends], ends, strict=False)]


def _weights(query: Tensor, key: Tensor) -> Tensor:
    """query [n, heads, size], key [n, kv heads, size] -> causal attention [heads, n, n]."""
    share = query.shape[1] // key.shape[1]
    scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(share, dim=1)) * query.shape[2] ** -0.5
    later = torch.ones(len(query), len(query), dtype=torch.bool).triu(1)
    weights: Tensor = scores.masked_fill(later, -torch.inf).softmax(-1)
    return weights


def measure_cost(model_dir: Path, rounds: int) -> dict[str, Any]:
    """Milliseconds of a decoding step of the plain tier on one thread, and per cent that reading one head adds; medians over ``rounds``
    of steps with and without it in turn. Processor time, which other programs on the machine disturb little."""
    sizes = read_config(model_dir).language_model
    model = Qwen2Model(sizes, load_weights(model_dir, sizes, torch.device("cpu"), torch.float32))
    head = sizes.text_position_head or (sizes.num_hidden_layers // 2, 0)
    return {f"{rows} sessions": _cost(model, rows, rounds, head) for rows in _COST_ROWS}


def _cost(model: Qwen2Model, rows: int, rounds: int, head: Head) -> dict[str, float]:
    engines = [_decoding(model, rows, None), _decoding(model, rows, head)]
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for engine, taken in zip(engines, times, strict=True):
            began = time.thread_time()
            for _ in range(_COST_STEPS):
                assert engine.step()
            taken.append((time.thread_time() - began) / _COST_STEPS)
    for engine in engines:
        engine.close()
    more = statistics.median(read / plain for plain, read in zip(*times, strict=True)) - 1
    plain, read = (1000 * statistics.median(taken) for taken in times)
    return {"step_ms": round(plain, 3), "with_one_head_ms": round(read, 3), "more_percent": round(100 * more, 2)}


class _NoSink:
    def on_ids(self, ids: Sequence[int]) -> None:
        pass

    def on_texts_left(self, count: int) -> None:
        pass

    def on_end(self, result: TurnResult) -> None:
        pass


def _decoding(model: Qwen2Model, rows: int, head: Head | None) -> TorchEngine:
    """Sessions with ``_CONTEXT`` positions each, of which ``_TEXTS`` are text, that decode without an end."""
    sizes = EngineSettings(
        max_sessions=rows, max_rows=256, kv_cache_tokens=rows * _LONGEST, max_sequence_ids=_LONGEST, knows_texts=head is not None
    )
    runner = EagerRunner(model, sizes, RepetitionAwareSampler(), head)
    engine, space = TorchEngine(model, sizes, threaded=False, runner=runner), model.space
    ids = [space.sos, *range(_TEXTS), *(space.speech_offset + place % 500 for place in range(_CONTEXT - _TEXTS))]
    limits = TurnLimits(_LONGEST - len(ids) - 1, forbidden=frozenset(space.specials))
    for row in range(rows):
        engine.open(str(row), SamplingSpec(seed=row), _LONGEST).turn(ids, limits, _NoSink())
    while engine.stats().waiting_turns:
        engine.step()
    return engine
