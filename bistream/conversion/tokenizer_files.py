"""Tokenizer files of the merged checkpoint: those of ``CosyVoice-BlankEN`` with the speech tokens and special vectors added."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from bistream.checkpoints.files import family_of
from bistream.conversion.vocabulary import MergedVocabulary
from bistream.text.tokenizer import TextTokenizer, make_pre_tokenizer

# Upstream's: the user's text between the two special vectors, the assistant's speech tokens after them.
CHAT_TEMPLATE = (
    "{%- for message in messages %}{%- if message['role'] == 'user' %}{{- '<|sos|>' + message['content'] + '<|task_id|>' }}"
    "{%- elif message['role'] == 'assistant' %}{{- message['content'] }}{%- endif %}{%- endfor %}"
)


def write_tokenizer_files(model_dir: Path, vocabulary: MergedVocabulary, out: Path) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json``, ``vocab.json`` and ``merges.txt`` into ``out``.

    Raises ``CheckpointError`` for a tokenizer of ``model_dir`` that is missing or damaged.
    """
    source = model_dir / family_of(model_dir).text_directory
    text = TextTokenizer.from_model_dir(model_dir)
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(source / name, out / name)
    tokenizer = Tokenizer(BPE.from_file(str(source / "vocab.json"), str(source / "merges.txt")))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = make_pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    special = sorted(text.special_tokens, key=text.special_tokens.__getitem__)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    added = vocabulary.added_tokens()
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in added])
    assert tokenizer.token_to_id("<|task_id|>") == vocabulary.task, "the ids of the added tokens do not follow the text ids"
    tokenizer.save(str(out / "tokenizer.json"))
    config = _config(json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8")), text.special_tokens, vocabulary)
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _config(source: dict[str, Any], special: dict[str, int], vocabulary: MergedVocabulary) -> dict[str, Any]:
    """``tokenizer_config.json``: the source's, with every added token declared."""

    def entry(token: str, is_special: bool) -> dict[str, object]:
        flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": is_special}
        return {"content": token, **flags}

    declared = {str(token_id): entry(token, True) for token, token_id in sorted(special.items(), key=lambda item: item[1])}
    for token_id, token in enumerate(vocabulary.added_tokens(), vocabulary.speech_offset):
        declared[str(token_id)] = entry(token, False)
    extra = [token for token in special if token not in (source.get("eos_token"), source.get("pad_token"))]
    return {**source, "added_tokens_decoder": declared, "additional_special_tokens": extra, "chat_template": CHAT_TEMPLATE}
