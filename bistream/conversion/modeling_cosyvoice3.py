"""CosyVoice3's language model for ``transformers``: Qwen2 whose head has a constant bias, without which it would sample text ids.

The bias is zero for the ids that may be sampled and minus infinity for all others. It is a buffer, which training leaves as it is, because
``llm.pt`` has no place for it. This file is part of every merged checkpoint; ``from_pretrained(folder, trust_remote_code=True)`` of
``AutoModelForCausalLM`` loads it.
"""

from typing import Any

import torch
from torch import nn
from transformers import Qwen2ForCausalLM


class CosyVoice3ForCausalLM(Qwen2ForCausalLM):  # type: ignore[no-untyped-call]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        del self.lm_head.bias
        self.lm_head.register_buffer("bias", torch.zeros(config.vocab_size))
        self.post_init()  # type: ignore[no-untyped-call]
