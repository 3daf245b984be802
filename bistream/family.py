"""The model families that can be served, and what differs between them: one description each.

``checkpoint_files.family_of`` chooses the description for a model directory; all else takes what it needs from it, most of it through
``config.CheckpointConfig``, and never asks for the name. Sources: upstream's examples/libritts/cosyvoice{2,3}/conf, cosyvoice/llm/llm.py,
cosyvoice/cli/model.py and cosyvoice/tokenizer/tokenizer.py. Pure data: no torch, no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SpeechRows:
    """The ids behind the speech tokens, counted from the first of them; in the order of the checkpoint's rows.

    num_scored: rows that the engine's head scores; a sampled one ends a turn. ``sos`` and ``task`` behind them are the rows of a
    table of their own (``llm_embedding``).
    num_stored: rows of the checkpoint's head. Those from ``num_scored`` on mean nothing anywhere in training, and are not loaded.
    names: the ids that mean something, first to last, as upstream writes them in the tokenizer of its merged checkpoint.
    """

    sos: int
    eos: int
    task: int
    fill: int
    num_scored: int
    num_stored: int
    names: tuple[str, ...]

    @property
    def have_own_table(self) -> bool:
        """Whether ``sos`` and ``task`` are rows of ``llm_embedding``."""
        return self.sos >= self.num_scored

    @property
    def size(self) -> int:
        """Ids behind the speech tokens that a sequence can hold or end with."""
        return max(self.num_scored, self.sos + 1, self.task + 1)


class SpeechIds:
    """Ids of a vocabulary from ``speech_offset`` on: the speech tokens, then ``rows``."""

    speech_token_size: int
    rows: SpeechRows

    @property
    def speech_offset(self) -> int:
        raise NotImplementedError

    @property
    def first_special(self) -> int:
        return self.speech_offset + self.speech_token_size

    @property
    def eos(self) -> int:
        return self.first_special + self.rows.eos

    @property
    def fill(self) -> int:
        return self.first_special + self.rows.fill

    @property
    def sos(self) -> int:
        return self.first_special + self.rows.sos

    @property
    def task(self) -> int:
        return self.first_special + self.rows.task


FlowKind = Literal["unet", "dit"]
VocoderKind = Literal["hift", "causal_hift"]
TokenizerVersion = Literal["cosyvoice2", "cosyvoice3"]  # which special tokens follow Qwen2's: ``text.special_tokens``


@dataclass(frozen=True)
class Family:
    """name: ``model_family`` in the models' metadata. language_model: upstream's class in the yaml.

    default_instruction: what stands before ``<|endofprompt|>`` where a request has no instruction; empty: the prompt needs none.
    silent_tokens: speech tokens of silence; of a longer run than ``silence.LONGEST_RUN`` the rest is not spoken. mel_high_hz: upper end
    of the flow's conditioning mel. tokenizer_norm_eps: of the speech tokenizer's LayerNorms before attention.
    """

    name: str
    title: str
    repository: str  # of the released checkpoint, for messages
    yaml_names: tuple[str, ...]
    language_model: str
    rows: SpeechRows
    head_has_bias: bool
    tokenizer_version: TokenizerVersion
    default_instruction: str
    silent_tokens: frozenset[int]
    speech_tokenizer_file: str
    tokenizer_norm_eps: float
    tokenizer_layers: int
    mel_high_hz: float
    flow: FlowKind
    vocoder: VocoderKind


COSYVOICE2 = Family(
    name="cosyvoice2",
    title="CosyVoice2",
    repository="CosyVoice2-0.5B",
    yaml_names=("cosyvoice2.yaml", "cosyvoice.yaml"),  # early releases used the second name, which is CosyVoice's, too
    language_model="Qwen2LM",
    rows=SpeechRows(
        eos=0,  # row 1: a second stop id
        fill=2,
        sos=3,
        task=4,
        num_scored=3,
        num_stored=3,
        names=("<|eos1|>", "<|eos2|>", "<|eos3|>", "<|sos|>", "<|task_id|>"),
    ),
    head_has_bias=True,
    tokenizer_version="cosyvoice2",
    default_instruction="",
    silent_tokens=frozenset(),
    speech_tokenizer_file="speech_tokenizer_v2.onnx",
    tokenizer_norm_eps=1e-6,
    tokenizer_layers=6,
    mel_high_hz=8000.0,
    flow="unet",
    vocoder="hift",
)
COSYVOICE3 = Family(
    name="cosyvoice3",
    title="CosyVoice3",
    repository="Fun-CosyVoice3-0.5B-2512",
    yaml_names=("cosyvoice3.yaml",),
    language_model="CosyVoice3LM",
    rows=SpeechRows(
        sos=0,
        eos=1,
        task=2,
        fill=3,
        num_scored=4,
        num_stored=200,
        names=("<|sos|>", "<|eos1|>", "<|task_id|>", "<|fill|>"),
    ),
    head_has_bias=False,
    tokenizer_version="cosyvoice3",
    default_instruction="You are a helpful assistant.",
    silent_tokens=frozenset({1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323}),
    speech_tokenizer_file="speech_tokenizer_v3.onnx",
    tokenizer_norm_eps=1e-5,
    tokenizer_layers=12,
    mel_high_hz=12000.0,
    flow="dit",
    vocoder="causal_hift",
)
FAMILIES = (COSYVOICE2, COSYVOICE3)
