"""The model classes with which ``trtllm-build`` builds the engine: TensorRT-LLM's Qwen2 with a bias at its head.

``trtllm-build --model_cls_file`` loads this file, so it imports nothing of bistream. Never run: no machine with TensorRT-LLM was available.
Read in NVIDIA/TensorRT-LLM, tensorrt_llm/models/qwen/model.py at 04a2cac.
"""

from typing import Any

from tensorrt_llm._utils import pad_vocab_size
from tensorrt_llm.layers import ColumnLinear
from tensorrt_llm.models import QWenForCausalLM


class CosyVoice2ForCausalLM(QWenForCausalLM):  # type: ignore[misc]  # has no types
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config.mapping.is_last_pp_rank():
            self.lm_head = ColumnLinear(
                config.hidden_size,
                pad_vocab_size(config.vocab_size, config.mapping.tp_size),
                bias=True,
                dtype=config.dtype,
                tp_group=config.mapping.tp_group,
                tp_size=config.mapping.tp_size,
                gather_output=True,
            )


class CosyVoice3ForCausalLM(CosyVoice2ForCausalLM):
    """The same network: its bias is zero for every id that may be sampled."""
