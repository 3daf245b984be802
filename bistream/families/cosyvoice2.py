"""CosyVoice2. Sources: upstream's examples/libritts/cosyvoice2/conf, cosyvoice/llm/llm.py and cosyvoice/tokenizer/tokenizer.py."""

from __future__ import annotations

from bistream.families.audio_format import AudioFormat
from bistream.families.family import BlockLayout, Family, Release, SpeechRows

AUDIO_FORMAT = AudioFormat(
    sample_rate=24_000, tokens_per_second=25, mel_frames_per_token=2, chunk_tokens=25, lookahead_tokens=3, vocoder_overlap_frames=8
)
BLOCKS = BlockLayout(text_tokens=5, speech_tokens=15, min_speech_per_text=2, max_speech_per_text=20)
TEXT_DIRECTORY = "CosyVoice-BlankEN"
# Qwen2's own: https://huggingface.co/Qwen/Qwen2-0.5B (tokenizer_config.json), ids 151643..151645 of the released model.
BASE_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED_TOKENS = (  # ids 151646..151662
    "<|endofprompt|>",
    "[breath]",
    "<strong>",
    "</strong>",
    "[noise]",
    "[laughter]",
    "[cough]",
    "[clucking]",
    "[accent]",
    "[quick_breath]",
    "<laughter>",
    "</laughter>",
    "[hissing]",
    "[sigh]",
    "[vocalized-noise]",
    "[lipsmack]",
    "[mn]",
)
SHARED_FILES = {  # of the release, the same in CosyVoice3's
    f"{TEXT_DIRECTORY}/config.json": (659, "168aa1bd401abc3bc262ba15ba4e499627a8b4e006e9d050b47c22de20660185"),
    f"{TEXT_DIRECTORY}/merges.txt": (1_402_109, "ac8ff86a72bee70828fbc1119bc4398c6f3a9a6e490d7b0dbe917be025478bd0"),
    f"{TEXT_DIRECTORY}/tokenizer_config.json": (1_287, "482bd979881423375ca5414e4e0d94cd7c5349dbb17fffd46b4d36d71e62a1bc"),
    f"{TEXT_DIRECTORY}/vocab.json": (2_776_833, "ca10d7e9fb3ed18575dd1e277a2579c16d108e32f27439684afa0e10b1440910"),
    "campplus.onnx": (28_303_423, "a6ac6a63997761ae2997373e2ee1c47040854b4b759ea41ec48e4e42df0f4d73"),
}

COSYVOICE2 = Family(
    name="cosyvoice2",
    title="CosyVoice2",
    release=Release(
        "CosyVoice2-0.5B",
        {"huggingface": "FunAudioLLM", "modelscope": "iic"},
        "eec1ae6c79877dbd9379285cf8789c9e0879293d",
        {
            **SHARED_FILES,
            "cosyvoice2.yaml": (7_330, "0af2c0d010c477187c39f3e8fd5f1ae2e4e6f90ad03ba37c10ed6c6a87b05959"),
            "flow.pt": (450_575_567, "ff4c2f867674411e0a08cee702996df13fa67c1cd864c06108da88d16d088541"),
            "hift.pt": (83_390_254, "3386cc880324d4e98e05987b99107f49e40ed925b8ecc87c1f4939432d429879"),
            "llm.pt": (2_023_316_821, "b144ef55b51ce8cfb79a73c90dbba0bdaba4e451c0ebcfab20f769264f84a608"),
            "speech_tokenizer_v2.onnx": (496_082_973, "d43342aa12163a80bf07bffb94c9de2e120a8df2f9917cd2f642e7f4219c6f71"),
        },
    ),
    audio_format=AUDIO_FORMAT,
    blocks=BLOCKS,
    yaml_names=("cosyvoice2.yaml", "cosyvoice.yaml"),  # early releases used the second name, which is CosyVoice's, too
    text_directory=TEXT_DIRECTORY,
    language_model="Qwen2LM",
    rows=SpeechRows(
        eos=0,  # row 1: a second stop id
        fill=2,
        sos=3,
        task=4,
        num_scored=3,
        num_stored=3,
        names=("<|eos1|>", "<|eos2|>", "<|eos3|>", "<|sos|>", "<|task_id|>"),
    ),
    head_has_bias=True,
    base_tokens=BASE_TOKENS,
    added_tokens=ADDED_TOKENS,
    spoken_tokens=frozenset(),
    tokenizer_version="",
    default_instruction="",
    silent_tokens=frozenset(),
    speech_tokenizer_file="speech_tokenizer_v2.onnx",
    tokenizer_norm_eps=1e-6,
    tokenizer_layers=6,
    mel_high_hz=8000.0,
    flow="unet",
    vocoder="hift",
)
