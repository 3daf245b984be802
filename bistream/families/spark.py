"""Spark-TTS: one Qwen2.5 writes text and speech tokens of a single stream, BiCodec makes audio of them in one pass, without a flow.

Source: SparkAudio/Spark-TTS at commit 2f1ea90 (cli/SparkTTS.py, sparktts/utils/token_parser.py) and the files of its release.
"""

from __future__ import annotations

from bistream.families.audio_format import AudioFormat
from bistream.families.family import BlockLayout, Family, Release, SpeechRows

_W2V = "wav2vec2-large-xlsr-53"
_STOP = 0  # the one row behind the speech tokens

SPARK = Family(
    name="spark",
    title="Spark-TTS",
    release=Release(
        "Spark-TTS-0.5B",
        {"huggingface": "SparkAudio", "modelscope": "SparkAudio"},
        "main",
        {  # sizes alone are known
            "config.yaml": (169, ""),
            "LLM/config.json": (658, ""),
            "LLM/model.safetensors": (2_026_568_968, ""),
            "LLM/tokenizer.json": (14_129_172, ""),
            "BiCodec/config.yaml": (1_164, ""),
            "BiCodec/model.safetensors": (625_518_756, ""),
            f"{_W2V}/config.json": (1_768, ""),
            f"{_W2V}/preprocessor_config.json": (212, ""),
        },
        licence="CC BY-NC-SA 4.0 (no commercial use)",
    ),
    # Audio depends on 67 tokens to both sides; nothing is causal, and no call shares samples with the one before.
    audio_format=AudioFormat(
        sample_rate=16_000, tokens_per_second=50, mel_frames_per_token=1, chunk_tokens=50, lookahead_tokens=67, vocoder_overlap_frames=0
    ),
    # All text of a sentence stands before its speech, so there are no blocks; their sizes serve where a pace of text, and a second hop that
    # comes soon, are reckoned. The bounds are those of CosyVoice's training, in seconds.
    blocks=BlockLayout(text_tokens=5, speech_tokens=20, min_speech_per_text=1, max_speech_per_text=40, interleaved=False),
    first_hop_tokens=12,  # 0.24 s; the language model makes those of the next hop in less, also for 64 callers of an H200
    yaml_names=("BiCodec/config.yaml",),
    text_directory="LLM",
    tokenizer_files=("tokenizer.json",),
    languages=frozenset({"en", "zh"}),
    can_be_instructed=False,
    takes_labels=True,
    rows=SpeechRows(sos=_STOP, eos=_STOP, task=_STOP, fill=_STOP, num_scored=1, num_stored=1, names=("<|im_end|>",)),
    language_model_file="LLM/model.safetensors",
    speech_tokenizer_file=f"{_W2V}/pytorch_model.bin",
    speaker_file="BiCodec/model.safetensors",
    network_files=(
        "config.yaml",
        "LLM/model.safetensors",
        "BiCodec/model.safetensors",
        f"{_W2V}/config.json",
        f"{_W2V}/preprocessor_config.json",
    ),
)
