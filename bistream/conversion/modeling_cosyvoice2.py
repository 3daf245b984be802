"""CosyVoice2's language model for ``transformers``: Qwen2 whose head has a bias, without which it would sample text ids.

This file is part of every merged checkpoint; ``AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`` loads it.
"""

from typing import Any

from torch import nn
from transformers import Qwen2ForCausalLM


class CosyVoice2ForCausalLM(Qwen2ForCausalLM):  # type: ignore[no-untyped-call]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=True)
        self.post_init()  # type: ignore[no-untyped-call]
