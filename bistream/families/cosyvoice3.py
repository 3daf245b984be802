"""CosyVoice3, which shares text tokenizer, rates and blocks with CosyVoice2. Sources: upstream's examples/libritts/cosyvoice3/conf,
cosyvoice/llm/llm.py, cosyvoice/cli/model.py and cosyvoice/tokenizer/tokenizer.py."""

from __future__ import annotations

from bistream.families.cosyvoice2 import ADDED_TOKENS, AUDIO_FORMAT, BASE_TOKENS, BLOCKS, SHARED_FILES, TEXT_DIRECTORY
from bistream.families.family import Family, Release, SpeechRows
from bistream.families.phoneme_tokens import PHONEME_TOKENS

COSYVOICE3 = Family(
    name="cosyvoice3",
    title="CosyVoice3",
    release=Release(
        "Fun-CosyVoice3-0.5B-2512",
        {"huggingface": "FunAudioLLM", "modelscope": "FunAudioLLM"},
        "29e01c4e8d000f4bcd70751be16fa94bf3d85a18",
        {
            **SHARED_FILES,
            "cosyvoice3.yaml": (6_934, "f5a6b2c6f05139d0f18861a1fe506f751e787026b77c05f7e8fef9f8a4405965"),
            "flow.pt": (1_329_116_148, "a6fab32a7825e5b0bc855ddd948f8db9370b0a786fbc249caa4595e95b608e4b"),
            "hift.pt": (83_202_622, "b279d7641eb97ae55b3b540cfba4f953c26492a2df758328a89a4d007ab87a65"),
            "llm.pt": (2_024_669_519, "69f43bd545131c30e98947fb360ea8b4dc9916d8e83dded7757c7ea4f5a24970"),
            "speech_tokenizer_v3.onnx": (969_451_503, "23236a74175dbdda47afc66dbadd5bcb41303c467a57c261cb8539ad9db9208d"),
        },
    ),
    audio_format=AUDIO_FORMAT,
    blocks=BLOCKS,
    yaml_names=("cosyvoice3.yaml",),
    text_directory=TEXT_DIRECTORY,
    language_model="CosyVoice3LM",
    rows=SpeechRows(
        sos=0,
        eos=1,
        task=2,
        fill=3,
        num_scored=4,
        num_stored=200,
        names=("<|sos|>", "<|eos1|>", "<|task_id|>", "<|fill|>"),
    ),
    head_has_bias=False,
    base_tokens=BASE_TOKENS,
    added_tokens=(*ADDED_TOKENS, "<|endofsystem|>", *PHONEME_TOKENS),
    spoken_tokens=frozenset(PHONEME_TOKENS),
    tokenizer_version="cosyvoice3",
    default_instruction="You are a helpful assistant.",
    silent_tokens=frozenset({1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323}),
    speech_tokenizer_file="speech_tokenizer_v3.onnx",
    tokenizer_norm_eps=1e-5,
    tokenizer_layers=12,
    mel_high_hz=12000.0,
    flow="dit",
    vocoder="causal_hift",
)
