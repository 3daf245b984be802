"""Loads the parts of a speech token service from a model directory: tokenizer, sizes and engine.

The only module that knows the available engines; an engine's libraries are imported when it is chosen. Importing this
module does not load torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bistream.checkpoints.config import CheckpointConfig, LanguageModelConfig
from bistream.checkpoints.model_card import ModelCard, read_model_card
from bistream.checkpoints.one_table import OneTableConfig, check_dtype
from bistream.checkpoints.reader import read_config
from bistream.config import RuntimeConfig
from bistream.contract.refusals import takes_no_labels
from bistream.errors import CheckpointError
from bistream.families.family import Family
from bistream.families.registry import DEFAULT_FAMILY
from bistream.metrics.recorder import Recorder
from bistream.processes.start_phases import phase
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.engine import Engine
from bistream.text2token.engine_settings import with_cache
from bistream.text2token.one_table.tokenizer import read_tokenizer
from bistream.text2token.one_table.voice_design import VoiceDesigner


@dataclass(frozen=True)
class LanguageModelParts:
    """sizes: those of the checkpoint; its sampling values are a session's defaults.

    family: its prompts, and which speech tokens are silence. card: how much it speaks in one sequence. voices: of families whose
    language model makes voices of labels; None also where another engine than torch speaks.
    """

    tokenizer: TextTokenizer
    sizes: LanguageModelConfig
    engine: Engine
    family: Family = DEFAULT_FAMILY
    card: ModelCard = ModelCard()
    voices: VoiceDesigner | None = None

    @property
    def designer(self) -> VoiceDesigner:
        """``voices``. Raises ``InvalidInputError`` where there is none."""
        if self.voices is None:
            raise takes_no_labels()
        return self.voices

    def close(self) -> None:
        """Stop the engines."""
        self.engine.close()
        if self.voices is not None:
            self.voices.close()


def load_parts(config: RuntimeConfig, recorder: Recorder | None = None) -> LanguageModelParts:
    """Raises ``CheckpointError`` naming a file that is missing, damaged or does not fit, or ``ConfigError``."""
    checkpoint = read_config(config.model_dir)
    sizes = checkpoint.language_model
    if isinstance(sizes, OneTableConfig):
        return _one_table_parts(config, sizes, checkpoint.family, recorder)
    with phase("tokenizer of the text"):
        tokenizer = read_text_tokenizer(config.model_dir, checkpoint)
    card = read_model_card(config.model_dir)
    engine = make_engine(with_cache(config, card.longest_utterance_s, sizes.tokens_per_second), recorder)
    return LanguageModelParts(tokenizer, sizes, engine, checkpoint.family, card)


def read_text_tokenizer(model_dir: str, checkpoint: CheckpointConfig) -> TextTokenizer:
    """Of any family. Raises ``CheckpointError`` for files that are missing, damaged, or not those of ``checkpoint``."""
    sizes, folder = checkpoint.language_model, checkpoint.family.text_directory
    if isinstance(sizes, OneTableConfig):
        return read_tokenizer(model_dir, folder, sizes.tokens)
    tokenizer = TextTokenizer.from_model_dir(model_dir)
    if tokenizer.size > sizes.text_vocab_size:
        raise CheckpointError(
            f"The tokenizer files have {tokenizer.size} ids, but {folder}/config.json gives vocab_size {sizes.text_vocab_size}; use files "
            "that belong together."
        )
    return tokenizer


def _one_table_parts(config: RuntimeConfig, sizes: OneTableConfig, family: Family, recorder: Recorder | None) -> LanguageModelParts:
    check_dtype(config.dtype)
    card = read_model_card(config.model_dir)
    with phase("tokenizer of the text"):
        tokenizer = read_tokenizer(config.model_dir, family.text_directory, sizes.tokens)
    if config.engine != "torch":
        longest = min(config.max_session_tokens, sizes.longest_sequence)
        engine = make_engine(replace(config, max_session_tokens=longest), recorder)
        return LanguageModelParts(tokenizer, sizes, engine, family, card)
    with phase("imports"):
        from bistream.text2token.one_table.loading import load_engines  # noqa: PLC0415  (loads torch)

    speech, voices = load_engines(config, sizes, family, recorder)
    return LanguageModelParts(tokenizer, sizes, speech, family, card, VoiceDesigner(voices, sizes, tokenizer.encode))


def make_engine(config: RuntimeConfig, recorder: Recorder | None = None) -> Engine:
    """The engine that ``config.engine`` names, loaded and running. Raises as ``load_parts`` does."""
    if config.engine == "torch":
        with phase("imports"):
            from bistream.text2token.torch_engine import TorchEngine  # noqa: PLC0415  (loads torch)

        return TorchEngine.from_config(config, recorder)
    from bistream.text2token.tensorrt_llm.engine import TensorRtLlmEngine  # noqa: PLC0415  (its library is loaded when it starts)

    return TensorRtLlmEngine.from_config(config, recorder)
