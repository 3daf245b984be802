"""What the language model is told of a voice: the prompt forms of CosyVoice2. Pure; flow and vocoder always get the whole voice.

| manner | instruction | prompt text | prompt speech | upstream (cosyvoice/cli/frontend.py) |
|---|---|---|---|---|
| a voice with its transcript | | transcript | tokens | ``frontend_zero_shot`` |
| cross-lingual, or no transcript | | | | ``frontend_cross_lingual`` |
| instruct | instruction | | | ``frontend_instruct2``: the instruction as prompt text |
| a voice without a recording | | | | ``frontend_sft`` |

Prompt speech without its text would be spoken text to the model, so the two always go together. Upstream drops the instruction where the
voice was saved with its transcript; here it replaces the transcript.
"""

from __future__ import annotations

import numpy as np

from bistream.types import IntArray, VoicePrompt


def language_prompt(voice: VoicePrompt, instruct_text: str, is_cross_lingual: bool) -> tuple[str, IntArray]:
    """Prompt text and prompt speech int32 [P], raw codes. instruct_text: empty for none."""
    if instruct_text or is_cross_lingual or not voice.prompt_text.strip():
        return "", np.zeros(0, np.int32)
    return voice.prompt_text, voice.speech_tokens
