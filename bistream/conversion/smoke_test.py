"""Whether an engine says what the torch engine says: greedy utterances of both, and how far a different id is from the best one.

Other arithmetic rounds differently, so where two ids have nearly the same score another engine may take the other one, and from there on
the utterances differ. Therefore every id is judged by the reference's own scores, given the ids before it: an id whose score is the
best but for ``tolerance`` is right.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bistream.conversion.tensorrt_llm_library import installed_version
from bistream.conversion.vocabulary import MergedVocabulary
from bistream.errors import ConfigError, EngineError
from bistream.text2token.engine import TokenSpace
from bistream.text2token.qwen2 import Qwen2Model

# Scores are of size 20; 16-bit heads round them to 0.06 (bfloat16) and 0.008 (float16), and their inputs are rounded in every layer.
TOLERANCES = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
Decoder = Callable[[Sequence[int], int], tuple[list[int], int | None]]  # prompt, most new ids -> ids, stop id; all of ``TokenSpace``


@dataclass(frozen=True)
class Comparison:
    """num_ids: the stop id is one of them. num_equal: leading ids that are those of the torch engine.

    num_best: ids that are the reference's first choice, given those before. worst_gap: by how much a score was below the best one.
    """

    num_ids: int
    num_equal: int
    num_best: int
    worst_gap: float

    def is_right(self, tolerance: float) -> bool:
        return self.num_ids > 0 and self.worst_gap <= tolerance


def compare(reference: Qwen2Model, prompt: Sequence[int], found: Sequence[int], expected: Sequence[int]) -> Comparison:
    """found, expected: ids that the two engines decoded after ``prompt``, each with its stop id where it has one."""
    if not found:
        return Comparison(0, 0, 0, float("inf"))
    space = reference.space
    with torch.inference_mode():
        scores = reference.logits(reference.forward_dense(torch.tensor([*prompt, *found[:-1]]))[len(prompt) - 1 :])
    rows = torch.tensor(found) - space.speech_offset
    in_head = (rows >= 0) & (rows < scores.shape[1])
    chosen = scores.gather(1, rows.clamp(0, scores.shape[1] - 1)[:, None])[:, 0]
    gaps = torch.where(in_head, scores.amax(1) - chosen, torch.inf)  # an id that is no row of the head cannot be sampled at all
    num_equal = next((index for index, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None)
    return Comparison(
        num_ids=len(found),
        num_equal=min(len(found), len(expected)) if num_equal is None else num_equal,
        num_best=int((gaps == 0).sum()),
        worst_gap=float(gaps.max()),
    )


def compiled_decoder(engine_dir: Path, vocabulary: MergedVocabulary, space: TokenSpace) -> Decoder:
    """A TensorRT engine that ``build_engine.py`` built. Raises ``ConfigError`` where this TensorRT-LLM cannot run one; the decoder raises
    ``EngineError`` for an id that is no speech.

    Never run: no machine with TensorRT-LLM was available.
    """
    version = installed_version()
    try:
        llm_class = importlib.import_module("tensorrt_llm._tensorrt_engine").LLM
        sampling_class = importlib.import_module("tensorrt_llm.llmapi").SamplingParams
    except Exception as error:  # a library or driver that is missing fails in any way
        raise ConfigError(
            f"TensorRT-LLM {version} cannot run a TensorRT engine ({type(error).__name__}); use version 1.2.1 on a machine with a GPU."
        ) from error
    llm = llm_class(model=str(engine_dir), skip_tokenizer_init=True)
    ids_of = vocabulary.ids(space)
    end_id, *others = vocabulary.stop_ids

    def own(merged_id: int) -> int:
        token_id = ids_of.from_merged(merged_id)
        if token_id is None:
            raise EngineError(f"The engine decoded id {merged_id}, which is no speech; build it again from the merged checkpoint.")
        return token_id

    def decode(prompt: Sequence[int], max_new_ids: int) -> tuple[list[int], int | None]:
        sampling = sampling_class(end_id=end_id, pad_id=end_id, stop_token_ids=others, max_tokens=max_new_ids, top_k=1, detokenize=False)
        (completion,) = llm.generate([ids_of.to_merged(prompt)], sampling)[0].outputs
        ids = [own(merged_id) for merged_id in completion.token_ids]
        if ids and ids[-1] in space.specials:
            return ids[:-1], ids[-1]
        if completion.finish_reason != "stop":
            return ids, None
        reason = completion.stop_reason  # None: the end id
        return ids, own(reason) if isinstance(reason, int) else space.eos

    return decode
