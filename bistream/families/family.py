"""What a family is described with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bistream.families.audio_format import AudioFormat


@dataclass(frozen=True)
class SpeechRows:
    """The ids behind the speech tokens, counted from the first of them; in the order of the checkpoint's rows.

    num_scored: rows that the engine's head scores; a sampled one ends a turn. ``sos`` and ``task`` behind them are the rows of a
    table of their own (``llm_embedding``).
    num_stored: rows of the checkpoint's head. Those from ``num_scored`` on mean nothing anywhere in training, and are not loaded.
    Where the family's sequences know no sos, task or fill, these are the row of eos: nothing asks for them.
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


@dataclass(frozen=True)
class BlockLayout:
    """How text and speech tokens alternate in the language model, and how many speech tokens a text can have (upstream's
    ``min_token_text_ratio`` and ``max_token_text_ratio``). interleaved: false where all text of a sentence stands before its speech."""

    text_tokens: int
    speech_tokens: int
    min_speech_per_text: int
    max_speech_per_text: int
    interleaved: bool = True


@dataclass(frozen=True, eq=False)
class Release:
    """The released checkpoint. owners: by hub, of the repository. files: name -> (bytes, SHA-256) of every file that the server reads and
    whose size is known; the hash is empty where it is not. licence: of the weights, where it restricts their use.

    Not read from the files themselves, but from public projects that pin them and agree with each other on all of them (November 2026). So
    a difference is reported, not treated as an error: there may be other revisions, and fine-tuned checkpoints are meant to differ.
    """

    repository: str
    owners: Mapping[str, str]
    commit: str
    files: Mapping[str, tuple[int, str]]
    licence: str = ""

    def repo_id(self, hub: str = "huggingface") -> str:
        return f"{self.owners[hub]}/{self.repository}"


@dataclass(frozen=True, kw_only=True)
class Family:
    """What every family has, and then what only some have, with a value that means none.

    name: ``model_family`` in the models' metadata. yaml_names: the file that tells the family; of several names one is enough.
    text_directory: folder of the language model's configuration and of ``tokenizer_files``. network_files: all others that the server
    reads, beside ``speech_tokenizer_file``; ``language_model_file`` and ``speaker_file`` are two of them.

    base_tokens, added_tokens: special tokens of the text tokenizer, in the order of their ids; a directory may declare others in place of
    the former. spoken_tokens: those of them that stand for speech as letters do. default_instruction: what stands before
    ``<|endofprompt|>`` where a request has no instruction; empty: the prompt needs none. languages, can_be_instructed, takes_labels: of the
    release, as in ``ModelCard``. silent_tokens: speech tokens of silence; of a longer run than ``silence.LONGEST_RUN`` the rest is not
    spoken. first_hop_tokens: speech tokens of the first audio chunk of a whole text.

    flow, vocoder: the networks between tokens and audio; None: the family has others, and nothing below applies to it. language_model:
    upstream's class in the yaml. tokenizer_version: in the yaml, where upstream has it. mel_high_hz: upper end of the flow's conditioning
    mel. tokenizer_norm_eps: of the speech tokenizer's LayerNorms before attention.
    """

    name: str
    title: str
    release: Release
    audio_format: AudioFormat
    blocks: BlockLayout
    yaml_names: tuple[str, ...]
    text_directory: str
    tokenizer_files: tuple[str, ...] = ("vocab.json", "merges.txt", "tokenizer_config.json")
    speech_tokenizer_file: str
    language_model_file: str = "llm.pt"
    speaker_file: str = "campplus.onnx"
    network_files: tuple[str, ...] = ("llm.pt", "flow.pt", "hift.pt", "campplus.onnx")
    rows: SpeechRows

    first_hop_tokens: int = 15
    head_has_bias: bool = False
    base_tokens: tuple[str, ...] = ()
    added_tokens: tuple[str, ...] = ()
    spoken_tokens: frozenset[str] = frozenset()
    default_instruction: str = ""
    languages: frozenset[str] = frozenset()
    can_be_instructed: bool = True
    takes_labels: bool = False
    silent_tokens: frozenset[int] = frozenset()

    flow: FlowKind | None = None
    vocoder: VocoderKind | None = None
    language_model: str = ""
    tokenizer_version: str = ""
    tokenizer_norm_eps: float = 0.0
    tokenizer_layers: int = 0
    mel_high_hz: float = 0.0

    @property
    def text_unit(self) -> str:
        """What of a text in pieces is spoken as soon as it is there: token | sentence."""
        return "token" if self.blocks.interleaved else "sentence"

    @property
    def repository(self) -> str:
        """Name of the released checkpoint, for messages."""
        return self.release.repository

    @property
    def has_codec(self) -> bool:
        """Whether a codec makes voices and audio, in place of flow and vocoder. Its speaker is a row of tokens."""
        return self.flow is None

    @property
    def tells_speaker(self) -> bool:
        """Whether the language model is told who speaks: its prompt has the speaker's tokens."""
        return self.has_codec

    @property
    def voice_files(self) -> tuple[str, ...]:
        """Networks that make a voice of a recording."""
        return (self.speech_tokenizer_file, self.speaker_file)

    @property
    def text_files(self) -> tuple[str, ...]:
        """Of the language model's configuration and tokenizer."""
        return tuple(f"{self.text_directory}/{name}" for name in ("config.json", *self.tokenizer_files))

    @property
    def required_files(self) -> tuple[tuple[str, ...], ...]:
        """Files of a model directory that the server reads; of the names in one tuple one is enough."""
        return (self.yaml_names, *((name,) for name in (*self.network_files, self.speech_tokenizer_file, *self.text_files)))
