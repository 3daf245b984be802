"""What the files of a model directory hold, for ``bistream doctor``: sizes, checksums, keys and shapes, inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
import torch

from bistream.bicodec.shapes import FILE_NAME as CODEC_FILE
from bistream.bicodec.voice import load_reader
from bistream.bicodec.wav2vec2_weights import FILE_NAME as WAV2VEC2_FILE
from bistream.checkpoints.config import CheckpointConfig
from bistream.checkpoints.download import DownloadError, check_directory, compare
from bistream.checkpoints.model_card import read_model_card
from bistream.checkpoints.model_dir import check_model_dir
from bistream.checkpoints.one_table import OneTableConfig
from bistream.checkpoints.reader import check_state_dict, load_state_dict
from bistream.commands.waiting import Waiting
from bistream.errors import CheckpointError
from bistream.families.family import Family
from bistream.mel2wav import weights as vocoder
from bistream.mel2wav.factory import expected_shapes as vocoder_shapes
from bistream.text2token import weights as language_model
from bistream.text2token.one_table import weights as one_table
from bistream.text2token.one_table.tokenizer import read_tokenizer
from bistream.token2mel import factory as flow_factory
from bistream.token2mel import weights as flow
from bistream.voice.made_with import SPEAKER_ENCODER_FILE


def describe(model_dir: Path) -> Iterator[str]:
    """Lines for the user, while the files are read. Raises ``CheckpointError`` at the first fault."""
    sizes = check_model_dir(model_dir)
    card = read_model_card(model_dir)
    yield f"model family: {sizes.family.title}"
    if card.title:
        yield f"what it is: {card.title}"
    if sizes.family.release.licence:
        yield f"licence of the weights: {sizes.family.release.licence}"
    yield f"languages: {', '.join(sorted(card.languages)) or 'those of the release'}"
    yield f"instructions (instruct_text): {'understood' if card.can_be_instructed else 'not understood'}"
    for names in sizes.family.required_files:
        path = next(model_dir / name for name in names if (model_dir / name).is_file())
        yield f"{path.relative_to(model_dir).as_posix():36}{path.stat().st_size:>16,} bytes"
    yield f"checksums: {_checksums(model_dir, sizes.family, is_own=bool(card.title))}"
    if isinstance(sizes.language_model, OneTableConfig):
        with Waiting("reading the language model"):
            sentence = _one_table(model_dir, sizes.language_model, sizes.family)
        yield sentence
        with Waiting("reading the codec"):
            load_reader(model_dir, torch.device("cpu"))
        yield f"{CODEC_FILE} and {WAV2VEC2_FILE}: all keys and shapes are right"
        return
    yield from _weights(model_dir, sizes)
    yield _graph(model_dir / SPEAKER_ENCODER_FILE, 1)
    yield _graph(model_dir / sizes.family.speech_tokenizer_file, 2)


def _checksums(model_dir: Path, family: Family, is_own: bool) -> str:
    """Against the record of the download, where there is one, else against the known release. is_own: it was trained here."""
    with Waiting("computing checksums") as waiting:
        try:
            recorded = check_directory(model_dir)
        except DownloadError as error:
            raise CheckpointError(str(error)) from None
        if recorded is not None:
            return f"all as recorded, of {recorded['repo_id']} at {recorded['commit']}"
        if is_own:
            return "none to compare with, for it is no release"
        found = compare(model_dir, family.release, lambda name: waiting.goes_on(f"checksum of {name}"))
    release = f"{found.release.repo_id()} at {found.release.commit[:7]}"
    if not found.different and not all(sha256 for _, sha256 in family.release.files.values()):
        return f"none are published; all files of known size are as large as those of {found.release.repo_id()}"
    if not found.different:
        return f"all files are those of {release}"
    others = f"{', '.join(found.equal)} are" if found.equal else "no file is"
    return f"{others} of {release}, {', '.join(found.different)} differ: fine-tuned, another revision, or damaged"


def _weights(model_dir: Path, sizes: CheckpointConfig) -> Iterator[str]:
    expected = {
        language_model.FILE_NAME: language_model.expected_shapes(sizes.language_model),
        flow.FILE_NAME: flow_factory.expected_shapes(sizes.flow),
        vocoder.FILE_NAME: vocoder_shapes(sizes.vocoder),
    }
    for name, shapes in expected.items():
        with Waiting(f"reading {name}"):
            sentence = _file(model_dir, name, shapes)
        yield sentence


def _one_table(model_dir: Path, sizes: OneTableConfig, family: Family) -> str:
    """Its tokenizer, too."""
    read_tokenizer(model_dir, family.text_directory, sizes.tokens)
    return _checked(one_table.FILE_NAME, one_table.load_state(model_dir, family.text_directory), one_table.expected_shapes(sizes))


def _file(model_dir: Path, name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    state = load_state_dict(model_dir / name)
    return _checked(name, vocoder.canonical_keys(state) if name == vocoder.FILE_NAME else state, shapes)


def _checked(name: str, state: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]]) -> str:
    check_state_dict(name, state, shapes)
    for key, tensor in state.items():
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{name}: key {key} contains NaN or infinity; the file is damaged, download it again.")
    numbers = sum(tensor.numel() for tensor in state.values())
    kinds = ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in state.values()}))
    return f"{name}: all {len(state)} keys and shapes are right, {numbers / 1e6:.1f} million numbers, {kinds}"


def _graph(path: Path, inputs: int) -> str:
    """Names are shown and not compared: nothing depends on them, and those of the released files are not known for certain."""
    try:
        graph = onnx.load(str(path), load_external_data=False).graph
    except Exception as error:  # protobuf's and onnx's own types
        raise CheckpointError(f"{path.name} could not be read ({type(error).__name__}); the file is damaged, download it again.") from error
    weights = {item.name for item in graph.initializer}
    taken = [item.name for item in graph.input if item.name not in weights]
    if len(taken) != inputs:
        raise CheckpointError(
            f"{path.name} has the inputs {', '.join(taken)} and should have {inputs}; it is not the released model's file."
        )
    return f"{path.name}: {', '.join(taken)} -> {', '.join(item.name for item in graph.output)}"
