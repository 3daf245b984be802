#!/usr/bin/env python3
"""Builds the TensorRT engines of the two networks that analyse recordings, so that no server has to at its first start.

    build_voice_engines.py --model-dir CosyVoice2-0.5B --engine-dir engines
    run.sh serve with SETTINGS="onnx_engine_dir=$PWD/engines"

Needs a GPU, onnxruntime-gpu (requirements/gpu.txt) and the TensorRT that it was built for. campplus.onnx gets the shapes of upstream's
build: 4 to 3000 frames, optimised for 500. Engines carry what they were built for (GPU, versions, hash of the ONNX file) and are not used
elsewhere. Not yet run on a GPU.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.checkpoints.files import family_of
from bistream.commands.waiting import Waiting
from bistream.errors import BistreamError
from bistream.families.registry import FAMILIES
from bistream.voice import speaker_encoder, speech_tokenizer
from bistream.voice.made_with import SPEAKER_ENCODER_FILE
from bistream.voice.onnx_providers import OnnxSettings
from bistream.voice.onnx_session import OnnxModel

RANGES = {
    SPEAKER_ENCODER_FILE: speaker_encoder.RANGES,
    **{family.speech_tokenizer_file: speech_tokenizer.RANGES for family in FAMILIES},
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", required=True, help="model directory of CosyVoice2 or CosyVoice3")
    parser.add_argument("--engine-dir", required=True, help="onnx_engine_dir of the server; made when it is missing")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N (default %(default)s)")
    parser.add_argument("--files", nargs="+", choices=sorted(RANGES), help="default: both that the model directory has")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    settings = OnnxSettings(options.device, providers="tensorrt", engine_dir=str(Path(options.engine_dir).resolve()))
    try:
        for name in options.files or (SPEAKER_ENCODER_FILE, family_of(options.model_dir).speech_tokenizer_file):
            began = time.monotonic()
            with Waiting(f"building {name}"):
                OnnxModel(options.model_dir, name, RANGES[name], settings)
            print(f"{name}: ready after {time.monotonic() - began:.0f} s")
    except BistreamError as error:
        print(f"build_voice_engines.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
