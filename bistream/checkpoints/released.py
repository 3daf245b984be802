"""The released checkpoints that are known: size and SHA-256 of every file that the server reads. Pure data, and a comparison.

Not read from the files themselves, which were never here, but from public projects that pin them and agree with each other on all of them
(November 2026). So a difference is told, and no error: there may be other revisions, and fine-tuned checkpoints are meant to differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bistream.checkpoints.download import hash_file
from bistream.checkpoints.reader import QWEN_DIRECTORY
from bistream.family import COSYVOICE2, COSYVOICE3


@dataclass(frozen=True)
class Release:
    """files: name -> (bytes, SHA-256)."""

    repo_id: str
    commit: str
    files: dict[str, tuple[int, str]]


_SHARED = {
    f"{QWEN_DIRECTORY}/config.json": (659, "168aa1bd401abc3bc262ba15ba4e499627a8b4e006e9d050b47c22de20660185"),
    f"{QWEN_DIRECTORY}/merges.txt": (1_402_109, "ac8ff86a72bee70828fbc1119bc4398c6f3a9a6e490d7b0dbe917be025478bd0"),
    f"{QWEN_DIRECTORY}/tokenizer_config.json": (1_287, "482bd979881423375ca5414e4e0d94cd7c5349dbb17fffd46b4d36d71e62a1bc"),
    f"{QWEN_DIRECTORY}/vocab.json": (2_776_833, "ca10d7e9fb3ed18575dd1e277a2579c16d108e32f27439684afa0e10b1440910"),
    "campplus.onnx": (28_303_423, "a6ac6a63997761ae2997373e2ee1c47040854b4b759ea41ec48e4e42df0f4d73"),
}
_COSYVOICE2 = {
    **_SHARED,
    "cosyvoice2.yaml": (7_330, "0af2c0d010c477187c39f3e8fd5f1ae2e4e6f90ad03ba37c10ed6c6a87b05959"),
    "flow.pt": (450_575_567, "ff4c2f867674411e0a08cee702996df13fa67c1cd864c06108da88d16d088541"),
    "hift.pt": (83_390_254, "3386cc880324d4e98e05987b99107f49e40ed925b8ecc87c1f4939432d429879"),
    "llm.pt": (2_023_316_821, "b144ef55b51ce8cfb79a73c90dbba0bdaba4e451c0ebcfab20f769264f84a608"),
    "speech_tokenizer_v2.onnx": (496_082_973, "d43342aa12163a80bf07bffb94c9de2e120a8df2f9917cd2f642e7f4219c6f71"),
}
_COSYVOICE3 = {
    **_SHARED,
    "cosyvoice3.yaml": (6_934, "f5a6b2c6f05139d0f18861a1fe506f751e787026b77c05f7e8fef9f8a4405965"),
    "flow.pt": (1_329_116_148, "a6fab32a7825e5b0bc855ddd948f8db9370b0a786fbc249caa4595e95b608e4b"),
    "hift.pt": (83_202_622, "b279d7641eb97ae55b3b540cfba4f953c26492a2df758328a89a4d007ab87a65"),
    "llm.pt": (2_024_669_519, "69f43bd545131c30e98947fb360ea8b4dc9916d8e83dded7757c7ea4f5a24970"),
    "speech_tokenizer_v3.onnx": (969_451_503, "23236a74175dbdda47afc66dbadd5bcb41303c467a57c261cb8539ad9db9208d"),
}


RELEASED = {
    family.name: Release(f"FunAudioLLM/{family.repository}", commit, files)
    for family, commit, files in (
        (COSYVOICE2, "eec1ae6c79877dbd9379285cf8789c9e0879293d", _COSYVOICE2),
        (COSYVOICE3, "29e01c4e8d000f4bcd70751be16fa94bf3d85a18", _COSYVOICE3),
    )
}


@dataclass(frozen=True)
class Comparison:
    """Names of files that are and that are not those of the release."""

    release: Release
    equal: tuple[str, ...]
    different: tuple[str, ...]


def compare(model_dir: Path, release: Release, before_file: Callable[[str], None] = lambda name: None) -> Comparison:
    """Reads the files whose size is the released one: 3 GB take some seconds. before_file: called with the name of each of those."""
    equal = list[str]()
    for name, (size, sha256) in release.files.items():
        path = model_dir / name
        if path.is_file() and path.stat().st_size == size:
            before_file(name)
            if hash_file(path)[0] == sha256:
                equal.append(name)
    return Comparison(release, tuple(equal), tuple(name for name in release.files if name not in equal))
