"""``llm.pt`` to the merged Hugging Face checkpoint, and back.

The head of the merged checkpoint has a bias: that of the speech head (CosyVoice3's has none: zero) on the rows that can be sampled, minus
infinity on all others. A Qwen2 head has none, so a loader of plain Qwen2 models would drop it and sample text ids. So ``config.json``
names an architecture of the family (``CosyVoice2ForCausalLM`` as upstream's class for vLLM; TensorRT-LLM refuses a name that it does not
know), and the folder brings the class for ``transformers`` (``modeling_*.py``), which is loaded with ``trust_remote_code=True``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bistream.checkpoints.config import LanguageModelConfig
from bistream.checkpoints.qwen2 import qwen2_config
from bistream.checkpoints.reader import check_state_dict, find_file, load_state_dict, read_config
from bistream.conversion.records import PARTIAL_SUFFIX
from bistream.conversion.tokenizer_files import write_tokenizer_files
from bistream.conversion.vocabulary import MergedVocabulary
from bistream.errors import CheckpointError
from bistream.families.family import Family
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.tensorrt_llm.merged_ids import HEAD_BIAS, WEIGHTS
from bistream.text2token.weights import BODY, FILE_NAME, expected_shapes

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TEXT_EMBEDDING, TEXT_HEAD = f"{BODY}.embed_tokens.weight", "llm.model.lm_head.weight"


def architecture_of(family: Family) -> str:
    """``architectures`` in ``config.json``, and the name of the class in ``modeling_file``."""
    return f"{family.title.replace('-', '')}ForCausalLM"


def modeling_file(family: Family) -> Path:
    return Path(__file__).with_name(f"modeling_{family.name}.py")


def vocabulary_of(model_dir: Path, config: LanguageModelConfig) -> MergedVocabulary:
    """The merged vocabulary of a model directory. Raises ``CheckpointError`` for a tokenizer that is damaged or too large."""
    text_size = TextTokenizer.from_model_dir(model_dir).size
    if text_size > config.text_vocab_size:
        raise CheckpointError(
            f"The tokenizer files have {text_size} ids, but CosyVoice-BlankEN/config.json gives vocab_size {config.text_vocab_size}; "
            "use files that belong together."
        )
    return MergedVocabulary(text_size, config.speech_token_size, config.rows)


def merged_state(state: Mapping[str, Tensor], vocabulary: MergedVocabulary, dtype: torch.dtype) -> dict[str, Tensor]:
    """The merged state dict of a checked ``llm.pt``. Rows of the text embedding beyond the tokenizer are left out: no text has them."""
    hidden = state["llm_decoder.weight"].shape[1]
    stored, scored = _stored_rows(vocabulary), _scored_rows(vocabulary)
    embedding = torch.zeros(vocabulary.size, hidden, dtype=dtype)
    embedding[: vocabulary.text_size] = state[TEXT_EMBEDDING][: vocabulary.text_size]
    embedding[stored] = state["speech_embedding.weight"]
    if vocabulary.rows.have_own_table:
        embedding[vocabulary.sos : vocabulary.task + 1] = state["llm_embedding.weight"]
    head, bias = torch.zeros_like(embedding), torch.full((vocabulary.size,), float("-inf"), dtype=dtype)
    head[stored] = state["llm_decoder.weight"]
    bias[scored] = state.get("llm_decoder.bias", torch.zeros(vocabulary.head_rows))
    body = {_merged_key(key): tensor.to(dtype).contiguous() for key, tensor in state.items() if _is_body(key)}
    return {EMBEDDING: embedding, **body, HEAD: head, HEAD_BIAS: bias}


def _stored_rows(vocabulary: MergedVocabulary) -> slice:
    return slice(vocabulary.speech_offset, vocabulary.speech_offset + vocabulary.stored_rows)


def _scored_rows(vocabulary: MergedVocabulary) -> slice:
    return slice(vocabulary.speech_offset, vocabulary.speech_offset + vocabulary.head_rows)


def _is_body(key: str) -> bool:
    """Layers and final norm: the tensors that both checkpoints have."""
    return key.startswith(f"{BODY}.") and key != TEXT_EMBEDDING


def _merged_key(key: str) -> str:
    return key.removeprefix("llm.model.")


def split_state(
    merged: Mapping[str, Tensor], config: LanguageModelConfig, vocabulary: MergedVocabulary, unused_rows: Tensor | None = None
) -> dict[str, Tensor]:
    """``llm.pt`` of a merged state dict, float32: the inverse of ``merged_state``.

    unused_rows [text_vocab_size - text_size, hidden]: rows of the text embedding that the merged checkpoint has no place for; zero where
    they are not given. Raises ``CheckpointError`` for a merged checkpoint of other sizes, without the head's bias, or with one that
    ``llm.pt`` has no place for.
    """
    _check_merged(merged, config, vocabulary)
    stored, scored = _stored_rows(vocabulary), _scored_rows(vocabulary)
    text = torch.zeros(config.text_vocab_size, config.hidden_size)
    text[: vocabulary.text_size] = merged[EMBEDDING][: vocabulary.text_size]
    if unused_rows is not None:
        text[vocabulary.text_size :] = unused_rows
    state = {
        "speech_embedding.weight": merged[EMBEDDING][stored].float().clone(),
        "llm_decoder.weight": merged[HEAD][stored].float().clone(),
        TEXT_EMBEDDING: text,
        TEXT_HEAD: text,  # one storage under two keys, as in the released file
    }
    if vocabulary.rows.have_own_table:
        state["llm_embedding.weight"] = merged[EMBEDDING][vocabulary.sos : vocabulary.task + 1].float().clone()
    if config.head_has_bias:
        state["llm_decoder.bias"] = merged[HEAD_BIAS][scored].float().clone()
    return state | {f"llm.model.{key}": tensor.float() for key, tensor in merged.items() if key not in (EMBEDDING, HEAD, HEAD_BIAS)}


def _check_merged(merged: Mapping[str, Tensor], config: LanguageModelConfig, vocabulary: MergedVocabulary) -> None:
    if HEAD_BIAS not in merged:
        raise CheckpointError(
            f"The merged checkpoint has no {HEAD_BIAS}: it was saved by a class without the speech head's bias, which is lost; load it "
            "with trust_remote_code=True before training, so that it is kept."
        )
    shapes = {_merged_key(key): shape for key, shape in expected_shapes(config).items() if _is_body(key)}
    size = (vocabulary.size, config.hidden_size)
    shapes |= {EMBEDDING: size, HEAD: size, HEAD_BIAS: (vocabulary.size,)}
    check_state_dict("the merged checkpoint", merged, shapes)
    if not config.head_has_bias and merged[HEAD_BIAS][_scored_rows(vocabulary)].any():
        raise CheckpointError(
            f"{HEAD_BIAS} of the merged checkpoint was trained, and llm.pt of this family has no place for it; load the checkpoint with "
            "trust_remote_code=True before training, so that the bias stays as it is."
        )


def class_of(family: Family) -> dict[str, Any]:
    """Of ``config.json``: the class, and where transformers find it."""
    architecture = architecture_of(family)
    return {"architectures": [architecture], "auto_map": {"AutoModelForCausalLM": f"{modeling_file(family).stem}.{architecture}"}}


def merged_config(config: LanguageModelConfig, vocabulary: MergedVocabulary, dtype: torch.dtype) -> dict[str, Any]:
    """``config.json`` but for the class."""
    ids = {"bos_token_id": vocabulary.sos, "eos_token_id": vocabulary.eos}
    return qwen2_config(config, vocabulary.size, str(dtype).removeprefix("torch."), tie_word_embeddings=False, use_bias=True, **ids)


def generation_config(config: LanguageModelConfig, vocabulary: MergedVocabulary) -> dict[str, Any]:
    """``generation_config.json``, as upstream's."""
    return {
        "bos_token_id": vocabulary.sos,
        "do_sample": True,
        "eos_token_id": vocabulary.stop_ids,
        "temperature": 1.0,
        "top_k": config.top_k,
        "top_p": config.top_p,
    }


def save_tensors(state: Mapping[str, Tensor], path: Path) -> None:
    """Raises ``OSError`` where the file cannot be written."""
    try:
        save_file(dict(state), str(path), metadata={"format": "pt"})  # transformers refuses a file without this
    except SafetensorError as error:
        raise OSError(f"{path} could not be written ({error}); free some space or name another folder.") from error
    path.chmod(0o644)  # the library makes it private, and servers often run as another user


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Raises ``CheckpointError`` for a file that is missing or damaged."""
    try:
        return load_file(str(path))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} could not be read ({type(error).__name__}); name the folder of a merged checkpoint.") from error


def write_merged(model_dir: Path, out: Path, dtype: torch.dtype) -> MergedVocabulary:
    """Write the merged checkpoint of ``model_dir`` into the existing folder ``out``. Raises ``CheckpointError`` naming a bad file."""
    checkpoint = read_config(model_dir)
    config, modeling = checkpoint.language_model, modeling_file(checkpoint.family)
    vocabulary = vocabulary_of(model_dir, config)
    state = load_state_dict(find_file(model_dir, FILE_NAME))
    check_state_dict(FILE_NAME, state, expected_shapes(config))
    save_tensors(merged_state(state, vocabulary, dtype), out / WEIGHTS)
    write_json(out / "config.json", {**merged_config(config, vocabulary, dtype), **class_of(checkpoint.family)})
    write_json(out / "generation_config.json", generation_config(config, vocabulary))
    write_tokenizer_files(model_dir, vocabulary, out)
    shutil.copyfile(modeling, out / modeling.name)
    return vocabulary


def write_llm_pt(merged_dir: Path, model_dir: Path, out: Path) -> None:
    """Write ``llm.pt`` of a merged checkpoint to the file ``out``; sizes and tokenizer are those of ``model_dir``.

    Rows of the text embedding that no text has come from ``model_dir/llm.pt`` where that is there. The file appears whole or not at all.
    Raises ``CheckpointError`` naming what does not fit, and ``OSError``.
    """
    config = read_config(model_dir).language_model
    vocabulary = vocabulary_of(model_dir, config)
    merged = load_tensors(merged_dir / WEIGHTS)
    unused_rows = None
    if (model_dir / FILE_NAME).is_file():
        unused_rows = load_state_dict(model_dir / FILE_NAME)[TEXT_EMBEDDING][vocabulary.text_size :]
    state = split_state(merged, config, vocabulary, unused_rows)
    partial = out.with_name(out.name + PARTIAL_SUFFIX)
    try:
        torch.save(state, partial)
        partial.replace(out)
    except RuntimeError as error:  # torch's writer, for what the system refuses
        raise OSError(f"{out} could not be written ({str(error).splitlines()[0]}); free some space or name another file.") from error
    finally:
        partial.unlink(missing_ok=True)
