"""The tokens that Spark-TTS adds to Qwen2.5's vocabulary, and their ids: BiCodec's codes, labels of a voice, tasks and brackets.

Of the released model: Qwen2.5's 22 from id 151643 on, then 13,493 more (the list is that of its added_tokens.json, sorted by ids). A model
with other codebooks has as many codes as those have, and everything after them moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

NUM_GLOBAL = 32  # tokens of a voice
_QWEN2_5 = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|> <|quad_end|> "
    "<|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> "
    "<|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>"
).split()
_NUMBERED = {  # behind the codes
    "pitch_value": 1001,
    "pitch_var_value": 11,
    "pitch_label": 5,
    "pitch_var_label": 5,
    "speed_value": 11,
    "speed_label": 5,
    "loudness_value": 31,
    "loudness_label": 5,
    "age": 5,
    "gender": 3,
    "emotion": 101,
}
_NAMED = (
    "task_vc task_tts task_asr task_s2s task_t2s task_cap task_understand task_controllable_tts task_prompt_tts task_edit start_content "
    "start_style_label start_style_prompt start_acoustic_token start_global_token start_semantic_token end_content end_style_label "
    "end_style_prompt end_acoustic_token end_global_token end_semantic_token"
).split()
NUM_QWEN2_5 = len(_QWEN2_5)
PLACE_OF_STOP = _QWEN2_5.index("<|im_end|>")


@dataclass(frozen=True)
class BiCodecTokens:
    """first: id of the first added token, which is the number of ordinary ones. num_global, num_semantic: codes."""

    first: int
    num_global: int
    num_semantic: int

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every added token as written, in the order of the ids from ``first`` on."""
        groups = {"bicodec_global": self.num_global, "bicodec_semantic": self.num_semantic, **_NUMBERED}
        numbered = (f"<|{group}_{number}|>" for group, count in groups.items() for number in range(count))
        return (*_QWEN2_5, *numbered, *(f"<|{name}|>" for name in _NAMED))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: self.first + place for place, name in enumerate(self.names)}

    def id(self, name: str) -> int:
        """Of a token, without its bars: ``task_tts``, ``gender_1``, ``im_end``. Raises ``KeyError``."""
        return self._ids[f"<|{name}|>"]

    def ids(self, group: str) -> range:
        """Of a numbered group: ``bicodec_semantic``, ``pitch_value``."""
        counts = {"bicodec_global": self.num_global, "bicodec_semantic": self.num_semantic, **_NUMBERED}
        start = self.id(f"{group}_0")
        return range(start, start + counts[group])

    @property
    def stop(self) -> int:
        """The only id that ends a sequence."""
        return self.first + PLACE_OF_STOP

    @property
    def end(self) -> int:
        """The id behind the last one."""
        return self.first + len(self.names)
