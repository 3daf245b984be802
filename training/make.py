"""Make the voice, stage by stage: each continues where it stopped and ends after ``--seconds``.

prepare          on Debian 12 with the network: packages of the teachers, text, text tokenizer -> build/voice/carried
corpus           speech of all voices (all cores)
tokenizer        speech tokenizer; then codes: the speech tokens of the corpus
speaker          speaker encoder
language_model, flow, vocoder    the three large ones; flow needs speaker and codes
export           a CosyVoice2 model directory -> build/voice/model

Exit status: 0 complete, 3 to be continued, 1 an error.
Example:  python training/make.py --stage corpus --seconds 500
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from training import stages
from training.sizes import SIZES, with_steps
from training.voices import VOICES


def _export(work: stages.Work) -> bool:
    from training.finish import export_voice  # noqa: PLC0415  (onnx and soundfile, which a training host may lack)

    return export_voice(work)


STAGES = {
    "prepare": stages.prepare,
    "corpus": stages.corpus,
    "tokenizer": stages.tokenizer,
    "codes": stages.codes,
    "speaker": stages.speaker,
    "language_model": stages.language_model,
    "flow": stages.flow,
    "vocoder": stages.vocoder,
    "export": _export,
}
TO_BE_CONTINUED = 3
_EQUAL_CROPS = ("tokenizer", "speaker", "vocoder")  # stages whose convolutions have one shape, worth a search for the fastest


def _named_steps(text: str) -> tuple[str, int]:
    """Raises ``argparse.ArgumentTypeError``."""
    name, _, steps = text.partition("=")
    if not steps.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is no number of steps; write language_model=24000")
    return name, int(steps)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=STAGES, required=True)
    parser.add_argument("--folder", type=Path, default=Path("build/voice"), help="of everything that is made (default: %(default)s)")
    parser.add_argument("--size", choices=SIZES, default="voice", help="smoke: tiny networks and few steps (default: %(default)s)")
    parser.add_argument(
        "--steps", type=_named_steps, nargs="*", default=[], metavar="STAGE=N", help="of a network in all, in place of the plan's"
    )
    parser.add_argument("--seconds", type=float, default=540.0, help="end about then, resumable (default: %(default)s)")
    parser.add_argument("--hours", type=float, default=1.0, help="scale of the corpus's 54 hours (default: %(default)s)")
    parser.add_argument("--voices", nargs="*", default=[], choices=[voice.name for voice in VOICES], help="of the corpus (default: all)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=0, help="of the stage corpus; 0: all cores")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = arguments.stage in _EQUAL_CROPS
    try:
        sizes = with_steps(SIZES[arguments.size], dict(arguments.steps))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    work = stages.Work(
        root=arguments.folder.resolve(),
        sizes=sizes,
        device=torch.device(arguments.device),
        deadline=time.monotonic() + arguments.seconds,
        hours=arguments.hours,
        seed=arguments.seed,
        processes=arguments.processes,
        voices=tuple(arguments.voices),
    )
    try:
        complete = STAGES[arguments.stage](work)
    except (FileNotFoundError, FloatingPointError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if complete else TO_BE_CONTINUED


if __name__ == "__main__":
    sys.exit(main())
