"""Writes a data set as input of NVIDIA's ``perf_analyzer`` (and of GenAI-Perf, which calls it): requests to the front door ``cosyvoice2``.

    python benchmarks/perf_analyzer_input.py --dataset assets/dataset.jsonl --out build/perf_analyzer.json
    perf_analyzer -m cosyvoice2 -i grpc -u localhost:8001 --input-data build/perf_analyzer.json --concurrency-range 1:26

That is for a server that answers in one piece (DECOUPLED_MODE=False); where it streams, add ``--streaming --async``. The format is that
of perf_analyzer's docs/input_data.md, "Real Input Data": {"data": [{tensor: {"content": ..., "shape": [...]}}]}, one entry for each
request, with whole shapes (``cosyvoice2`` has no batch dimension), numbers as base64 of little-endian values, texts as lists of strings.

perf_analyzer itself is in no package index and was not run; tests/triton/test_benchmarks.py sends every request of such a file.
Needs requirements/client.txt; requirements/benchmarks.txt for Parquet and the hub.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.client.audio import read_reference
from bistream.client.exit_codes import EXIT_OK, EXIT_USAGE, fail
from bistream.errors import InvalidInputError
from scripts._dataset import Row, read_rows


def request(row: Row) -> dict[str, Any]:
    """One entry of "data". Raises ``ValueError`` for a recording that cannot be read."""
    recording = read_reference(row.prompt_audio)
    return {
        "reference_wav": _numbers(recording.reshape(1, -1).astype("<f4")),
        "reference_wav_len": _numbers(np.array([[recording.size]], "<i4")),
        "reference_text": {"content": [row.prompt_text], "shape": [1, 1]},
        "target_text": {"content": [row.target_text], "shape": [1, 1]},
    }


def _numbers(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"content": {"b64": base64.b64encode(array.tobytes()).decode("ascii")}, "shape": list(array.shape)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, metavar="SET", help="Parquet, JSONL, manifest, folder, or name on the hub")
    parser.add_argument("--split", help="of the data set, where it has several, e.g. wenetspeech4tts")
    parser.add_argument("--max-rows", type=int, metavar="N", help="the first N rows only")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the JSON file goes")
    options = parser.parse_args(arguments)
    try:
        with TemporaryDirectory() as recordings:
            rows = read_rows(options.dataset, options.split, Path(recordings), options.max_rows)
            content = {"data": [request(row) for row in rows]}
        options.out.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    except (InvalidInputError, ValueError, OSError) as error:
        return fail(str(error), EXIT_USAGE)
    print(f"wrote {len(rows)} requests to {options.out}")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
