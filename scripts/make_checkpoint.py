"""Make a model directory with random weights: every file of the released one, in its format and key names.

Three families, each in two sizes: ``tiny`` loads in a moment and speaks faster than real time on two CPU cores (tests, the demo);
``full`` has the released shapes (benchmarks). Its speech is noise. Same seed, same tensors.

Example:  python scripts/make_checkpoint.py --size tiny build/tiny_checkpoint
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import onnx
import torch
from tqdm import tqdm

from bistream.checkpoints.config import (
    CausalVocoderConfig,
    CheckpointConfig,
    DitConfig,
    DitFlowConfig,
    EstimatorConfig,
    FlowConfig,
    FlowEncoderConfig,
    LanguageModelConfig,
    VocoderConfig,
)
from bistream.checkpoints.one_table import RELEASED, OneTableConfig
from bistream.families.bicodec_tokens import BiCodecTokens
from bistream.families.cosyvoice2 import COSYVOICE2
from bistream.families.cosyvoice3 import COSYVOICE3
from bistream.families.family import Family
from bistream.families.spark import SPARK
from bistream.mel2wav import factory as vocoder
from bistream.text2token import weights as language_model_weights
from bistream.token2mel import factory as flow
from bistream.voice import campplus_network, s3_network
from scripts import _codec_files, _one_table_files
from scripts._campplus_model import campplus_model
from scripts._checkpoint_text import checkpoint_yaml, qwen2_config_json
from scripts._onnx_models import speech_tokenizer_model
from scripts._random_weights import Drawer, Scale, common_scale, flow_state, language_model_state, speaker_encoder_state, vocoder_state
from scripts._tokenizer_files import FULL_VOCAB_SIZE, special_token_count, write_tokenizer_files


@dataclass(frozen=True)
class CheckpointSize:
    """Sizes of all networks of a model directory."""

    checkpoint: CheckpointConfig
    speech_tokenizer: s3_network.S3Config
    speaker_encoder: campplus_network.CampplusConfig
    has_speaker_table: bool = True  # ``spk2info.pt``


TINY_STEPS = 4  # of the flow's solver: with random weights ten give no other speech, and take more than twice as long
TINY = CheckpointSize(
    checkpoint=CheckpointConfig(
        language_model=LanguageModelConfig(
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            text_vocab_size=1024,
        ),
        flow=FlowConfig(
            encoder=FlowEncoderConfig(input_size=64, output_size=64, attention_heads=4, linear_units=128, num_blocks=2, num_up_blocks=2),
            estimator=EstimatorConfig(channels=(32,), attention_head_dim=16, n_blocks=1, num_mid_blocks=2, num_heads=2),
            input_size=64,
            n_timesteps=TINY_STEPS,
        ),
        vocoder=VocoderConfig(base_channels=48, f0_channels=32),
    ),
    speech_tokenizer=s3_network.S3Config(width=128, layers=2),
    speaker_encoder=campplus_network.CampplusConfig(
        channels=4, width=16, growth=8, bottleneck=16, context=8, blocks=((2, 1), (3, 2), (2, 2))
    ),
)
FULL = CheckpointSize(
    checkpoint=CheckpointConfig(),
    speech_tokenizer=s3_network.S3Config(),
    speaker_encoder=campplus_network.CampplusConfig(),
)
SIZES = {"tiny": TINY, "full": FULL}


def _of_cosyvoice3(size: CheckpointSize, dit: DitFlowConfig, hift: CausalVocoderConfig, tokenizer_layers: int) -> CheckpointSize:
    """The same body of the language model and the same speaker encoder, with CosyVoice3's rows, flow, vocoder and tokenizer."""
    family = COSYVOICE3
    language_model = replace(size.checkpoint.language_model, rows=family.rows, head_has_bias=family.head_has_bias)
    tokenizer = replace(size.speech_tokenizer, layers=tokenizer_layers, attention_norm_eps=family.tokenizer_norm_eps)
    checkpoint = CheckpointConfig(language_model, dit, hift, family)
    return replace(size, checkpoint=checkpoint, speech_tokenizer=tokenizer, has_speaker_table=False)


TINY_DIT = DitFlowConfig(dit=DitConfig(dim=64, depth=2, heads=4, dim_head=16), lookahead_channels=48, n_timesteps=TINY_STEPS)
TINY_CAUSAL_HIFT = CausalVocoderConfig(base_channels=48, f0_channels=32)
TINY3 = _of_cosyvoice3(TINY, TINY_DIT, TINY_CAUSAL_HIFT, tokenizer_layers=2)
FULL3 = _of_cosyvoice3(FULL, DitFlowConfig(), CausalVocoderConfig(), COSYVOICE3.tokenizer_layers)


@dataclass(frozen=True)
class OneTableSize:
    """Sizes of a model with one table of text and speech."""

    family: Family
    language_model: OneTableConfig
    codec: _codec_files.CodecFiles


TINY_SPARK = OneTableSize(
    SPARK,
    OneTableConfig.of(
        {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 2560,
        },
        BiCodecTokens(first=512, num_global=256, num_semantic=512),
        SPARK,
    ),
    _codec_files.TINY,
)
FULL_SPARK = OneTableSize(SPARK, OneTableConfig.of({"vocab_size": 166_000}, RELEASED, SPARK), _codec_files.FULL)
FAMILY_SIZES = {COSYVOICE2.name: SIZES, COSYVOICE3.name: {"tiny": TINY3, "full": FULL3}}
ONE_TABLE_SIZES = {SPARK.name: {"tiny": TINY_SPARK, "full": FULL_SPARK}}

PARTIAL_SUFFIX = ".partial"
DEFAULT_SPEAKER_ID = "001"  # the key that upstream's Triton runtime looks up
DEFAULT_SPEAKER_TOKENS = 50


def make_checkpoint(directory: Path, size: str = "tiny", seed: int = 0, device: str = "cpu", family: str = COSYVOICE2.name) -> None:
    """Write the model directory ``directory``; it appears under its name only when it is complete.

    Raises ``FileExistsError`` when ``directory`` exists already.
    """
    if directory.exists():
        raise FileExistsError(f"{directory} exists already; remove it or name another directory.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", suffix=PARTIAL_SUFFIX, dir=directory.parent))
    try:
        partial.chmod(0o755)  # mkdtemp makes it private
        if family in ONE_TABLE_SIZES:
            write_all(partial, _one_table_writers(ONE_TABLE_SIZES[family][size], Drawer(seed, device)))
        else:
            _write_files(partial, FAMILY_SIZES[family][size], Drawer(seed, device))
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_files(directory: Path, size: CheckpointSize, drawer: Drawer) -> None:
    config, family = size.checkpoint, size.checkpoint.family
    (directory / family.yaml_names[0]).write_text(checkpoint_yaml(config), encoding="utf-8")
    qwen = directory / family.text_directory
    qwen.mkdir()
    (qwen / "config.json").write_text(qwen2_config_json(config.language_model), encoding="utf-8")
    special_tokens = special_token_count(family)
    write_tokenizer_files(qwen, min(FULL_VOCAB_SIZE, config.language_model.text_vocab_size - special_tokens))
    writers: dict[str, Callable[[Path], object]] = {
        "llm.pt": lambda path: torch.save(
            language_model_state(drawer, language_model_weights.expected_shapes(config.language_model)), path
        ),
        "flow.pt": lambda path: torch.save(flow_state(drawer, flow.expected_shapes(config.flow)), path),
        "hift.pt": lambda path: torch.save(vocoder_state(drawer, vocoder.expected_shapes(config.vocoder), config.vocoder), path),
        family.speech_tokenizer_file: lambda path: onnx.save(_random_speech_tokenizer(size, drawer), str(path)),
        "campplus.onnx": lambda path: onnx.save(_random_speaker_encoder(size, drawer), str(path)),
    }
    if size.has_speaker_table:
        writers["spk2info.pt"] = lambda path: torch.save({DEFAULT_SPEAKER_ID: _random_speaker(config, drawer)}, path)
    write_all(directory, writers)


def _one_table_writers(size: OneTableSize, drawer: Drawer) -> dict[str, Callable[[Path], object]]:
    """All files of the directory, by name."""
    return {
        **_codec_files.writers(size.codec, drawer),
        **_one_table_files.writers(size.language_model, size.family.text_directory, drawer),
    }


def write_all(directory: Path, writers: Mapping[str, Callable[[Path], object]]) -> None:
    for name, write in tqdm(writers.items(), desc="drawing weights", unit="file", leave=False, delay=2, disable=None):
        (directory / name).parent.mkdir(exist_ok=True)
        write(directory / name)
        (directory / name).chmod(0o644)  # some writers make it private


def _random_speech_tokenizer(size: CheckpointSize, drawer: Drawer) -> onnx.ModelProto:
    shapes = s3_network.expected_shapes(size.speech_tokenizer)
    name = size.checkpoint.family.speech_tokenizer_file
    state = drawer.state_dict(name, shapes, common_scale)
    return speech_tokenizer_model({key: tensor.numpy() for key, tensor in state.items()}, name)


def _random_speaker_encoder(size: CheckpointSize, drawer: Drawer) -> onnx.ModelProto:
    config = replace(size.speaker_encoder, size=size.checkpoint.flow.spk_embed_dim)
    state = speaker_encoder_state(drawer, campplus_network.expected_shapes(config))
    return campplus_model({key: tensor.numpy() for key, tensor in state.items()}, config)


def _random_speaker(config: CheckpointConfig, drawer: Drawer) -> dict[str, str | torch.Tensor]:
    """A speaker without a recording, in the form that upstream's Triton runtime reads."""
    tokens = DEFAULT_SPEAKER_TOKENS
    features = (1, config.flow.token_mel_ratio * tokens, config.flow.output_size)
    uniform = drawer.draw("spk2info.pt", "speech_token", (1, tokens), Scale(1.0)).frac().abs()
    return {
        "prompt_text": "A random voice speaks here.",
        "speech_token": (uniform * config.flow.vocab_size).to(torch.int32),
        "speech_feat": drawer.draw("spk2info.pt", "speech_feat", features, Scale(1.5, mean=-5.0)),
        "embedding": drawer.draw("spk2info.pt", "embedding", (1, config.flow.spk_embed_dim), Scale(1.0)),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="CosyVoice-BlankEN/ gets its configuration and tokenizer files but no model weights: nothing reads them, as llm.pt holds "
        "the whole language model. The tokenizer is made for this size and is not Qwen2's. The two ONNX files have the released networks' "
        "architecture. spk2info.pt is made for CosyVoice2 alone.",
    )
    parser.add_argument("directory", type=Path, metavar="OUT", help="directory to make; must not exist")
    parser.add_argument(
        "--family", choices=sorted(FAMILY_SIZES | ONE_TABLE_SIZES), default=COSYVOICE2.name, help="whose files (default: %(default)s)"
    )
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny", help="network sizes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (default: %(default)s)")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where numbers are drawn; the two draw different ones (default: %(default)s)",
    )
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    started = time.monotonic()
    try:
        make_checkpoint(arguments.directory, arguments.size, arguments.seed, arguments.device, arguments.family)
    except FileExistsError as error:
        print(error, file=sys.stderr)
        return 1
    size_mb = sum(path.stat().st_size for path in arguments.directory.rglob("*") if path.is_file()) / 1e6
    print(f"{arguments.directory}: {arguments.size} checkpoint, {size_mb:.1f} MB in {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
