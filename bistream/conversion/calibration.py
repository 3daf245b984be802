"""Speech to calibrate int8 activations with: texts, and what the model itself says to them.

TensorRT-LLM's converter calibrates with news texts by default, which tell nothing about speech tokens. It takes 512 samples of at most
512 ids from a data set, and reads a local one only where its format is known by a name in the path: ``lambada`` means the field ``text`` of
the split ``validation`` (tensorrt_llm/models/convert_utils.py at 0396172: ``load_calib_dataset``; models/qwen/convert.py at 0428c18:
``capture_activation_range``). So the folder has that name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bistream.conversion.utterances import decode, prompt_of, reference_engine, told
from bistream.conversion.vocabulary import speech_token_text
from bistream.errors import InvalidInputError
from bistream.rates import MAX_SPEECH_TOKENS_PER_TEXT_TOKEN
from bistream.text2token.engine import SamplingSpec, TokenSpace

NUM_SAMPLES = 512
MAX_IDS = 512  # of one sample, the rest would be cut off
FOLDER = "lambada"


def read_texts(path: Path) -> list[str]:
    """One text in each line. Raises ``InvalidInputError``."""
    try:
        texts = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} could not be read as UTF-8 text ({error}); name another file.") from None
    if not texts:
        raise InvalidInputError(f"{path} holds no text; give one text in each line.")
    return texts


def write_dataset(model_dir: Path, texts: Sequence[str], folder: Path, device: str, num_samples: int = NUM_SAMPLES) -> Path:
    """Speak ``num_samples`` utterances, the texts in turn with other seeds; returns the folder to calibrate with, below ``folder``."""
    out = folder / FOLDER
    out.mkdir(parents=True)
    with reference_engine(model_dir, MAX_IDS, device) as parts, (out / "validation.jsonl").open("w", encoding="utf-8") as file:
        space = TokenSpace.of(parts.sizes)
        for index in range(num_samples):
            text = told(parts.family, texts[index % len(texts)])
            prompt = prompt_of(space, parts.tokenizer.encode(text)[: MAX_IDS // 4])
            most = min(MAX_IDS - len(prompt), MAX_SPEECH_TOKENS_PER_TEXT_TOKEN * len(prompt))
            ids, _ = decode(parts.engine, prompt, SamplingSpec(seed=index), most)
            speech = "".join(speech_token_text(space.speech_token(token_id)) for token_id in ids)
            file.write(json.dumps({"text": f"<|sos|>{text}<|task_id|>{speech}"}, ensure_ascii=False) + "\n")
    return out
