#!/usr/bin/env python3
"""Downloads CosyVoice2-0.5B, Fun-CosyVoice3-0.5B-2512 or Spark-TTS-0.5B from Hugging Face or ModelScope, or checks a directory.

    download_checkpoint.py build/CosyVoice2-0.5B
    download_checkpoint.py build/CosyVoice2-0.5B --hub modelscope --revision master
    download_checkpoint.py build/Fun-CosyVoice3-0.5B-2512 --family cosyvoice3
    download_checkpoint.py build/Spark-TTS-0.5B --family spark
    download_checkpoint.py --check build/CosyVoice2-0.5B

Where a licence restricts the use of the weights, it is told before the download. Only what the server reads is fetched (3 to 4 GB). After a
run that was cut off the same command keeps the files that are whole. Checksums are compared with those of the hub and recorded in
download_manifest.json; the directory appears under its name only when it is complete. --check compares the files with that record.

The libraries of the two hubs are in requirements/hub.txt. HF_ENDPOINT and MODELSCOPE_ENDPOINT name a mirror, HF_TOKEN and
MODELSCOPE_API_TOKEN a token.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.checkpoints.download import HUBS, DownloadError, check_directory, download
from bistream.checkpoints.files import family_of
from bistream.checkpoints.model_dir import check_model_dir
from bistream.errors import CheckpointError
from bistream.families.registry import DEFAULT_FAMILY, FAMILIES

FAMILIES_BY_NAME = {family.name: family for family in FAMILIES}
REVISIONS = {"huggingface": "main", "modelscope": "master"}


def run(options: argparse.Namespace) -> str:
    """Download or check; returns the sentence that says what is there now. Raises ``DownloadError`` and ``CheckpointError``."""
    directory: Path = options.directory
    if options.check:
        if not directory.is_dir():
            raise DownloadError(f"{directory} does not exist; download it first, or correct the name.")
        family_of(directory)
        known = check_directory(directory)
        if known is None:
            check_model_dir(directory)
            return f"{directory} has every file of a checkpoint; it has no record of a download, so no checksum was compared"
        return f"{directory} is {known['repo_id']} of {known['hub']} at {known['commit']}: {len(known['files'])} files, all checksums right"
    release = FAMILIES_BY_NAME[options.family].release
    if release.licence:
        print(f"the weights of {release.repository} are under {release.licence}", flush=True)
    repo_id = options.model_id or release.repo_id(options.hub)
    made = download(options.hub, repo_id, options.revision or REVISIONS[options.hub], directory)
    size = sum(entry["size"] for entry in made["files"].values()) / 1e6
    return f"made {directory}: {repo_id} of {options.hub} at {made['commit']}, {len(made['files'])} files, {size:.1f} MB"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR", help="the model directory to make or to check")
    parser.add_argument("--hub", choices=sorted(HUBS), default="huggingface", help="default: %(default)s")
    parser.add_argument("--family", choices=sorted(FAMILIES_BY_NAME), default=DEFAULT_FAMILY.name, help="default: %(default)s")
    parser.add_argument("--model-id", metavar="OWNER/NAME", help="default: the released checkpoint of the family")
    parser.add_argument("--revision", help="branch, tag or commit; a commit pins the version (default: the main branch)")
    parser.add_argument("--check", action="store_true", help="download nothing; compare the directory with its record")
    options = parser.parse_args(arguments)
    if options.model_id and not re.fullmatch(r"[\w.-]+/[\w.-]+", options.model_id):
        print(f"download_checkpoint.py: the model id is {options.model_id!r}; it has the form OWNER/NAME.", file=sys.stderr)
        return 2
    try:
        print(run(options))
    except KeyboardInterrupt:
        print("download_checkpoint.py: stopped; the same command keeps the files that are whole.", file=sys.stderr)
        return 130
    except ImportError as error:
        print(f"download_checkpoint.py: {error.name} is not installed; run: pip install -r requirements/hub.txt", file=sys.stderr)
        return 1
    except (DownloadError, CheckpointError, OSError) as error:
        print(f"download_checkpoint.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
