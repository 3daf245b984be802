"""The language model as TensorRT-LLM's PyTorch backend runs it: its Qwen2 with a speech head in place of the merged one.

TensorRT-LLM's head has no bias, so with the merged checkpoint text ids would get the score 0 instead of minus infinity. This head reads the
rows that can be sampled (CosyVoice2's 6564, CosyVoice3's 6565, Spark-TTS's 8193) and their bias alone, and pads the scores to the
vocabulary with minus infinity: ids stay merged ones, and the matrix of 158,000 rows or more is neither stored nor read in every step.
Importing this module needs TensorRT-LLM.
"""

from __future__ import annotations

from typing import Any

import torch
from tensorrt_llm._torch.models.modeling_qwen import Qwen2ForCausalLM
from tensorrt_llm._torch.models.modeling_utils import register_auto_model
from tensorrt_llm._torch.modules.embedding import LMHead
from torch import Tensor, nn

from bistream.text2token.tensorrt_llm.merged_ids import padded_scores

# The architecture names that config.json of a merged checkpoint may have; the process serves this model alone.
ARCHITECTURES = ("Qwen2ForCausalLM", "CosyVoice2ForCausalLM", "CosyVoice3ForCausalLM", "SparkTTSForCausalLM")


class SpeechHead(LMHead):  # type: ignore[misc]  # has no types
    """Scores of the merged vocabulary [n, V], finite in rows ``first`` to ``first + num_rows - 1``.

    ``num_embeddings`` stays the size of the merged vocabulary: TensorRT-LLM compares the ids of every prompt with it.
    """

    def __init__(self, vocab_size: int, hidden_size: int, dtype: torch.dtype, first: int, num_rows: int) -> None:
        super().__init__(num_embeddings=vocab_size, embedding_dim=hidden_size, dtype=dtype)
        self.first, self.num_rows = first, num_rows
        self.weight = nn.Parameter(torch.empty((num_rows, hidden_size), dtype=dtype), requires_grad=False)
        self.bias = nn.Parameter(torch.empty((num_rows,), dtype=dtype), requires_grad=False)

    def forward(self, input: Tensor, **_: Any) -> Tensor:
        return padded_scores(input, self.weight, self.bias, self.first, self.num_embeddings)

    def load_weights(self, weights: list[dict[str, Any]], **_: Any) -> None:
        """weights: one dictionary, the merged head's ``weight`` [V, H] and ``bias`` [V]."""
        rows = slice(self.first, self.first + self.num_rows)
        self.weight.data.copy_(weights[0]["weight"][rows])
        self.bias.data.copy_(weights[0]["bias"][rows])


def register_speech_model(first: int, num_rows: int) -> None:
    """From now on this process loads merged checkpoints with a ``SpeechHead`` over these rows."""

    class SpeechQwen2(Qwen2ForCausalLM):  # type: ignore[misc]  # has no types
        def __init__(self, model_config: Any) -> None:
            super().__init__(model_config)
            sizes = model_config.pretrained_config
            self.lm_head = SpeechHead(sizes.vocab_size, sizes.hidden_size, sizes.torch_dtype, first, num_rows)
            self.epilogue = [self.lm_head]

    for name in ARCHITECTURES:
        register_auto_model(name)(SpeechQwen2)
