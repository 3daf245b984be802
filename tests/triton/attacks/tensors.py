"""Random requests for any model of the wire contract: valid, invalid, and of a wrong type, shape or length. Strategies of hypothesis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from bistream.contract.field import Field
from bistream.contract.fields import ModelContract
from bistream.text.special_tokens import SPECIAL_TOKENS
from tests.sounds import speech_like

TYPES: dict[str, Any] = {"BOOL": np.bool_, "INT32": np.int32, "INT64": np.int64, "FP32": np.float32, "FP64": np.float64}
IDS = ("a", "b")  # valid ones; whoever sends these requests cancels both afterwards
SCALE = {"reference_wav": 0.1, "source_wav": 0.1}
# Number of elements of a vector. Long ones are rare: each costs the server, and hypothesis, most of the time.
LENGTHS = {
    "reference_wav": (0, 1, 7999, 8000, 16000, 16000, 16000, 480_001),
    "source_wav": (0, 1, 8000, 16000, 480_001),
    "target_speech_tokens": (0, 1, 15, 18, 40, 3001),
    "prompt_speech_tokens": (0, 1, 10, 10, 751),
    "speaker_tokens": (0, 32, 32, 37, 751),
    "prompt_spk_embedding": (0, 1, 192, 192, 192, 193),
}
FEATURES = ((20, 80), (20, 80), (2, 80), (0, 80), (20, 79), (1502, 80), (3, 0))


@dataclass(frozen=True)
class Tensor:
    """As on the wire, where nothing makes the three agree."""

    datatype: str
    shape: tuple[int, ...]
    data: bytes

    def __repr__(self) -> str:
        return f"{self.datatype}{self.shape}:{self.data[:40]!r}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """For hypothesis, which would print all data of a failing example."""
        printer.text(repr(self))


@dataclass(frozen=True)
class Request:
    model: str
    tensors: dict[str, Tensor]


def bytes_tensor(text: str | bytes) -> Tensor:
    data = text.encode() if isinstance(text, str) else text
    return Tensor("BYTES", (1, 1), len(data).to_bytes(4, "little") + data)


def array_tensor(datatype: str, array: NDArray[Any]) -> Tensor:
    return Tensor(datatype, array.shape, np.ascontiguousarray(array).tobytes())


def _scalar(datatype: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Tensor]:
    return values.map(lambda value: array_tensor(datatype, np.full((1, 1), value, TYPES[datatype])))


TEXTS: st.SearchStrategy[Tensor] = st.one_of(
    st.sampled_from(("Good morning.", "Yes.", "再见。", "", " ", "x" * 401, "x" * 5000, "so " + SPECIAL_TOKENS[0], 30 * SPECIAL_TOKENS[0])),
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.binary(max_size=12),
).map(bytes_tensor)
ID_VALUES: tuple[str | bytes, ...] = (*IDS, *IDS, *IDS, "", "a b", "x" * 129, "é", "../a", b"\xff")
NAMES: st.SearchStrategy[Tensor] = st.sampled_from(ID_VALUES).map(bytes_tensor)
SPEAKERS: st.SearchStrategy[Tensor] = st.sampled_from(("nobody", "../etc/passwd", "", "x" * 65)).map(bytes_tensor)
LABELS: st.SearchStrategy[Tensor] = st.sampled_from(("female", "male", "very_low", "moderate", "loud", "")).map(bytes_tensor)
NUMBERS: dict[str, st.SearchStrategy[Any]] = {
    "BOOL": st.booleans(),
    "INT32": st.one_of(st.sampled_from((0, 1, 15, 25, 16000)), st.integers(-(2**31), 2**31 - 1)),
    "INT64": st.one_of(st.integers(0, 9), st.integers(-(2**63), 2**63 - 1)),
    "FP32": st.one_of(st.sampled_from((0.5, 0.8, 1.0, 1.0, 1.5)), st.floats(width=32)),
}


@st.composite
def vectors(draw: st.DrawFn, spec: Field) -> Tensor:
    """Of plausible values, with one that is not now and then."""
    shape = draw(st.sampled_from(FEATURES)) if spec.name == "prompt_speech_feat" else (draw(st.sampled_from(LENGTHS[spec.name])),)
    generator = np.random.default_rng(draw(st.integers(0, 3)))
    if spec.datatype == "INT32":
        array: NDArray[Any] = generator.integers(0, 6000, shape).astype(np.int32)
        odd: Any = draw(st.sampled_from((None, None, None, -1, 6561, 2**31 - 1)))
    else:
        array = (SCALE.get(spec.name, 1.0) * generator.standard_normal(shape)).astype(np.float32).clip(-1, 1)
        odd = draw(st.sampled_from((None, None, None, np.nan, np.inf, 1e30)))
    if odd is not None and array.size:
        array.flat[array.size // 2] = odd
    return array_tensor(spec.datatype, array.reshape(1, -1) if len(spec.dims) == 2 and array.ndim == 1 else array)


def values(spec: Field) -> st.SearchStrategy[Tensor]:
    """For one input of a contract."""
    if spec.name == "session_id":
        return NAMES
    if spec.name == "speaker_id":
        return SPEAKERS
    if spec.name in ("gender", "pitch", "speaking_rate"):
        return LABELS
    if spec.datatype == "BYTES":
        return TEXTS
    return vectors(spec) if -1 in spec.dims else _scalar(spec.datatype, NUMBERS[spec.datatype])


@st.composite
def misshapen(draw: st.DrawFn) -> Tensor:
    """Type, shape and data that do not agree."""
    datatype = draw(st.sampled_from((*TYPES, "BYTES", "FP16")))
    shape = tuple(draw(st.lists(st.sampled_from((0, 1, 1, 2, 7, -1)), max_size=3)))
    return Tensor(datatype, shape, draw(st.binary(max_size=24)))


def _good(shape: tuple[int, ...], datatype: str = "FP32") -> Tensor:
    generator = np.random.default_rng(0)
    array = generator.integers(0, 6000, shape) if datatype == "INT32" else 0.1 * generator.standard_normal(shape)
    return array_tensor(datatype, array.astype(TYPES[datatype]))


def _flags(**flags: bool) -> dict[str, Tensor]:
    return {name: array_tensor("BOOL", np.full((1, 1), flag)) for name, flag in flags.items()}


RECORDING = {"reference_wav": array_tensor("FP32", speech_like().reshape(1, -1))}
VOICE = {**RECORDING, "reference_text": bytes_tensor("A reference.")}
SESSION = {"session_id": bytes_tensor(IDS[0])}
SPOKEN = {"prompt_speech_tokens": _good((10,), "INT32")}
FEATURED = {**SPOKEN, "prompt_speech_feat": _good((20, 80)), "prompt_spk_embedding": _good((192,))}
TEXT, LLM_TEXT = {"target_text": bytes_tensor("Yes.")}, {"text": bytes_tensor("Yes."), **SPOKEN, "prompt_text": bytes_tensor("So.")}
HOP = {"target_speech_tokens": _good((18,), "INT32")}
# Valid requests, on which the random ones are built.
GOOD: dict[str, tuple[dict[str, Tensor], ...]] = {
    "cosyvoice2_bistream": (
        {**TEXT, **VOICE},
        {**TEXT, **VOICE, **SESSION, **_flags(is_end=False)},
        {**TEXT, **SESSION, **_flags(is_start=False)},
        {**SESSION, **_flags(is_cancel=True)},
    ),
    "cosyvoice2": ({**TEXT, **VOICE},),
    "spark_tts": ({**TEXT, **VOICE},),
    "llm_bistream": (
        {**LLM_TEXT, **SESSION},
        {**LLM_TEXT, **SESSION, **_flags(is_pull=True)},
        {**LLM_TEXT, **SESSION, **_flags(is_end=False)},
        {**SESSION, **_flags(is_start=False, is_pull=True)},
        {"text": bytes_tensor(" No."), **SESSION, **_flags(is_start=False)},
    ),
    "token2wav": (
        {**HOP, **FEATURED, **SESSION},
        {**HOP, **SESSION, **_flags(finalize=True)},
        {**HOP, **FEATURED, **SESSION, **_flags(finalize=True)},
        {**HOP, **FEATURED},
    ),
    "audio_tokenizer": (RECORDING,),
    "speaker_embedding": (RECORDING,),
}


@st.composite
def requests(draw: st.DrawFn, contract: ModelContract) -> Request:
    """A valid request of which up to three inputs were replaced, added or left out, and in a tenth one input fits nothing."""
    specs = {spec.name: spec for spec in contract.inputs}
    chosen = dict(draw(st.sampled_from(GOOD[contract.name])))
    for name in draw(st.lists(st.sampled_from(sorted(specs)), max_size=3, unique=True)):
        if name in chosen and draw(st.integers(0, 3)) == 0:
            del chosen[name]
        else:
            chosen[name] = draw(values(specs[name]))
    if draw(st.integers(0, 9)) == 0:
        chosen[draw(st.sampled_from((*specs, "volume")))] = draw(misshapen())
    return Request(contract.name, chosen)
