"""How this process runs its part of the model: ``RuntimeConfig``, a frozen tree that is built once.

Defaults exist here and nowhere else: templates, scripts and docs read them. Sizes of the model: ``checkpoints.config``.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bistream.contract.checks import SERVER_TEXT_NORMALIZATIONS
from bistream.errors import ConfigError

SERVER_DRAIN_TIMEOUT_S = 30.0  # of the keeper, the gate and the interfaces; what models do by themselves is ``drain_timeout_s``
LONGEST_S = 1e6  # limit of every time in the configuration (11 days): blocking calls do not accept infinity


@dataclass(frozen=True)
class RuntimeConfig:
    """How one process runs its part of the pipeline; one field per ``parameters`` key of ``config.pbtxt``.

    Every Triton model of the repository receives only the keys that it uses; an unknown key is an error.
    """

    # Written by scripts/make_model_repo.py, from the checkpoint and the device
    model_dir: str = ""  # a directory of CosyVoice2, CosyVoice3 or Spark-TTS (or one made by scripts/make_checkpoint.py)
    model_family: str = ""  # of ``model_dir``, for clients that read a model's configuration; written by scripts/make_model_repo.py
    languages: str = ""  # of its model card (checkpoints/model_card.py), with commas, likewise for clients
    can_be_instructed: bool = True  # the same
    sample_rate: int = 0  # Hz of the speech, likewise
    tokens_per_second: int = 0  # of speech, likewise
    text_unit: str = ""  # of its family, likewise
    engine: str = "torch"  # torch | tensorrt_llm
    engine_dir: str = ""  # merged Hugging Face checkpoint for tensorrt_llm
    shared_kv_cache_tokens: int = 0  # positions of the language model's KV cache on this model's device; 0: none there

    # Set for the machine, by who runs the server
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    dtype: str = "auto"  # auto | float32 | bfloat16 | float16: weights and activations of LM and flow
    num_threads: int = 0  # torch and onnxruntime threads of this process; 0 keeps the library's default
    kernels: str = "auto"  # auto | graphs | plain: which tier computes the networks (gpu/tier.py)
    log_level: str = "info"

    # Set for the load, by who runs the server (docs/operations.md, sizing); on a GPU ``sizing`` chooses them where ``max_sessions`` is open
    max_sessions: int = 64  # live sessions of this model at most; further ones are refused with BUSY
    kv_cache_tokens: int = 0  # positions of the paged KV cache, over all sessions; 0: what max_sessions need (engine_settings)
    max_session_tokens: int = 4096  # most positions (prompt, text and speech) of a sequence
    flow_state_mb: int = 0  # byte budget of the flow's resident state; 0: 30 s of audio per session, at most 70 % of the available memory
    left_context_chunks: int = 0  # flow attends to this many chunks to its left; 0: unlimited, as the reference
    solver_steps: int = 0  # Euler steps of the flow: fewer cost less time and memory, and are less exact; 0: the checkpoint's (10)
    flow_context_s: float = 300.0  # seconds, voice included, that the flow of a session knows; then it forgets the older half of the speech
    admission_load: float = 0.0  # promised over possible audio seconds per second, above which starts are refused; 0: no such limit
    reserved_speech_s: float = 0.0  # speech for which a start must find flow state; 0: as long as it is expected to be
    capacity_audio_s_per_s: float = 0.0  # audio seconds per second that token2wav can make; 0: as measured
    max_offline_tokens: int = 3000  # speech tokens of an utterance rendered as a whole (25 per second): its cost grows with the square
    max_offline_jobs: int = 16  # such utterances at most, waiting or being computed; further ones are refused with BUSY
    max_voice_analyses: int = 16  # recordings at most, waiting or being analysed; further ones are refused with BUSY
    voice_cache_size: int = 64  # most recently used voices that stay cached
    drain_timeout_s: float = 10.0  # at shutdown, time that running sessions have to finish

    # Set for the callers, by who offers the service
    max_text_chars: int = 4000  # per session, all pieces together
    text_normalization: str = "off"  # of ``checks.SERVER_TEXT_NORMALIZATIONS``: how texts are prepared whose session does not say so
    lexicon: str = ""  # a JSON file of words and phrases and how they are respelled; empty: none
    watermark: str = "off"  # off | on_request | on: which audio has a mark that tells programs that it is synthetic (docs/watermark.md)
    session_idle_timeout_s: float = 60.0  # a session is closed after this long without text that can be spoken and without audio
    min_reference_s: float = 0.5
    max_reference_s: float = 30.0
    condition_recordings: bool = True  # trim recordings to their speech, scale loud ones, refuse those without; false: as they come
    voices_dir: str = ""  # registered voices; empty: none
    default_speaker_id: str = ""  # used for requests with neither reference nor speaker_id (upstream's spk2info cache)
    max_unread_audio_s: float = 60.0  # unplayed audio of a client at which its generation pauses (back-pressure); below 10 it may hear gaps

    # Set for comparisons, by who measures or checks parity; the defaults serve
    speech_tokenizer: str = "auto"  # auto | onnx (on the CPU) | torch: which program runs the speech tokenizer
    speaker_encoder: str = "auto"  # auto | onnx (on the CPU) | torch: which program runs the speaker encoder
    text_position_head: str = "auto"  # auto: the checkpoint's, if it names one | none | LAYER,HEAD: attention that tells text_position
    runaway_s: float = 3.0  # the rest of a turn is given up after so long a stretch that repeats itself or hardly varies; 0: never
    max_rows: int = 256  # rows (tokens) of one language-model step at most
    first_hop_tokens: int = 0  # speech tokens of the first audio chunk of a whole text; 0: the family's; text in pieces: hops/policy.py
    first_lookahead_tokens: int = 10  # Spark-TTS: speech tokens behind the first audio of a sentence before it is spoken; 67: exactly
    max_hop_chunks: int = 4  # chunks of 25 tokens that a hop of a whole text takes at most; hops grow with their place in the speech
    idle_pause: float = 2.0  # pause of the language model after a step for which nobody waits, in lengths of that step; 0: none

    def __post_init__(self) -> None:
        _check(self.engine in ("torch", "tensorrt_llm"), "engine", self.engine, "torch or tensorrt_llm")
        is_device = re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", self.device) is not None
        _check(is_device, "device", self.device, "auto, cpu, cuda or cuda:N")
        _check(self.dtype in ("auto", "float32", "bfloat16", "float16"), "dtype", self.dtype, "auto, float32, bfloat16 or float16")
        _check(self.kernels in ("auto", "graphs", "plain"), "kernels", self.kernels, "auto, graphs or plain")
        is_head = re.fullmatch(r"auto|none|\d{1,4},\d{1,4}", self.text_position_head) is not None
        _check(is_head, "text_position_head", self.text_position_head, "auto, none, or a layer and a head such as 2,0")
        for name in ("speech_tokenizer", "speaker_encoder"):
            _check(getattr(self, name) in ("auto", "onnx", "torch"), name, getattr(self, name), "auto, onnx or torch")
        modes = SERVER_TEXT_NORMALIZATIONS
        _check(self.text_normalization in modes, "text_normalization", self.text_normalization, ", ".join(modes))
        _check(self.watermark in ("off", "on_request", "on"), "watermark", self.watermark, "off, on_request or on")
        for name in (
            "max_sessions",
            "max_text_chars",
            "max_session_tokens",
            "max_rows",
            "voice_cache_size",
            "max_offline_tokens",
            "max_offline_jobs",
            "max_voice_analyses",
        ):
            _check(getattr(self, name) > 0, name, getattr(self, name), "a number above 0")
        for name in ("session_idle_timeout_s", "min_reference_s", "max_reference_s", "max_unread_audio_s"):
            _check(0 < getattr(self, name) <= LONGEST_S, name, getattr(self, name), f"a number above 0, at most {LONGEST_S:g}")
        _check(0 <= self.drain_timeout_s <= LONGEST_S, "drain_timeout_s", self.drain_timeout_s, f"0 or more, at most {LONGEST_S:g}")
        _check(0 <= self.runaway_s <= LONGEST_S, "runaway_s", self.runaway_s, f"0 (never) or more, at most {LONGEST_S:g}")
        _check(0 <= self.admission_load <= 1, "admission_load", self.admission_load, "a number from 0 (no limit) to 1")
        for name, zero in (("capacity_audio_s_per_s", "as measured"), ("reserved_speech_s", "as expected")):
            _check(0 <= getattr(self, name) <= LONGEST_S, name, getattr(self, name), f"0 ({zero}) or more, at most {LONGEST_S:g}")
        _check(self.min_reference_s <= self.max_reference_s, "min_reference_s", self.min_reference_s, "max_reference_s or less")
        _check(self.kv_cache_tokens >= 0, "kv_cache_tokens", self.kv_cache_tokens, "0 (enough for all sessions) or more")
        _check(self.shared_kv_cache_tokens >= 0, "shared_kv_cache_tokens", self.shared_kv_cache_tokens, "0 (none) or more")
        _check(self.flow_state_mb >= 0, "flow_state_mb", self.flow_state_mb, "0 (automatic) or more")
        is_hop = self.first_hop_tokens == 0 or 6 <= self.first_hop_tokens <= 100
        _check(is_hop, "first_hop_tokens", self.first_hop_tokens, "0 (the family's) or a number from 6 to 100")
        _check(0 <= self.first_lookahead_tokens <= 67, "first_lookahead_tokens", self.first_lookahead_tokens, "a number from 0 to 67")
        _check(1 <= self.flow_context_s <= 300, "flow_context_s", self.flow_context_s, "a number from 1 to 300")
        is_count = self.solver_steps == 0 or 3 <= self.solver_steps <= 10
        _check(is_count, "solver_steps", self.solver_steps, "0 (the checkpoint's) or a number from 3 to 10")
        _check(self.num_threads >= 0, "num_threads", self.num_threads, "0 or more")
        _check(1 <= self.max_hop_chunks <= 8, "max_hop_chunks", self.max_hop_chunks, "a number from 1 to 8")
        _check(0 <= self.idle_pause <= 20, "idle_pause", self.idle_pause, "a number from 0 (never) to 20")
        _check(self.left_context_chunks >= 0, "left_context_chunks", self.left_context_chunks, "0 or more")

    @classmethod
    def from_strings(cls, values: Mapping[str, str]) -> RuntimeConfig:
        """Build from string parameters (``config.pbtxt``, environment). Raises ``ConfigError`` naming key and value."""
        return cls(**parse_fields(cls, values))


def _check(condition: bool, key: str, value: object, expected: str) -> None:
    if not condition:
        raise ConfigError(f"Parameter {key!r} is {value!r}; set it to {expected}.")


def parse_fields(cls: type, values: Mapping[str, str]) -> dict[str, Any]:
    """Parse strings into the field types (str, int, float, bool) of dataclass ``cls``; unknown keys are errors."""
    hints = typing.get_type_hints(cls)
    known = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    parsed: dict[str, Any] = {}
    for key, text in values.items():
        if key not in known:
            raise ConfigError(f"Parameter {key!r} is unknown; known are {', '.join(sorted(known))}.")
        parsed[key] = _parse_value(key, text, known[key])
    return parsed


def _parse_value(key: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ConfigError(f"Parameter {key!r} is {text!r}; set it to true or false.")
    if kind is int or kind is float:
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(f"Parameter {key!r} is {text!r}; set it to a number ({kind.__name__}).") from None
    return text
