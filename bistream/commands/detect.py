"""Whether recordings have the mark of synthetic speech that a server lays over its audio (docs/watermark.md), by Perth's detector.

    bistream detect answer.wav call.mp3
    answer.wav: marked (1.000)
    call.mp3: not marked (0.002)

In brackets the detector's confidence, from 0.5 on of a mark; of more than 30 s that of the surest part. Any mark of Perth is found,
also that of another program. Exit codes: 0 all are marked, 1 one is not, 2 one could not be examined, for the reason in its line.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bistream.client.audio import read_recording
from bistream.client.exit_codes import EXIT_OK, EXIT_USAGE, fail
from bistream.contract.audio import REFERENCE_SAMPLE_RATE
from bistream.errors import BistreamError
from bistream.types import FloatArray
from bistream.watermark.detector import MARKED, SHORTEST_S, Detector

EXIT_UNMARKED = 1
LONGEST_S = 7200.0  # of a file
PART_S = 30.0


def surest(detector: Detector, samples: FloatArray, sample_rate: int) -> float:
    """The highest confidence of parts of about ``PART_S``."""
    parts = max(1, int(len(samples) / (PART_S * sample_rate)))
    size = -(-len(samples) // parts)
    return max(detector.confidence(samples[begin : begin + size], sample_rate) for begin in range(0, len(samples), size))


def examine(detector: Detector, path: Path) -> int:
    try:
        samples = read_recording(path, LONGEST_S).samples
    except ValueError as error:
        return fail(str(error), EXIT_USAGE)
    if len(samples) < SHORTEST_S * REFERENCE_SAMPLE_RATE:
        return fail(f"{path} is shorter than {SHORTEST_S} seconds, too short for the detector; give a longer recording.", EXIT_USAGE)
    confidence = surest(detector, samples, REFERENCE_SAMPLE_RATE)
    is_marked = confidence >= MARKED
    print(f"{path}: {'marked' if is_marked else 'not marked'} ({confidence:.3f})")
    return EXIT_OK if is_marked else EXIT_UNMARKED


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a recording of at least 0.5 s: WAV, FLAC, MP3, Ogg, ...")
    options = parser.parse_args(arguments)
    try:
        detector = Detector()
    except BistreamError as error:
        return fail(error.sentence, EXIT_USAGE)
    return max(examine(detector, path) for path in options.files)


if __name__ == "__main__":
    sys.exit(main())
