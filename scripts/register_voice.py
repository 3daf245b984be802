"""Register a voice, so that clients name it by speaker_id instead of sending a recording with every session.

Examples:
    register_voice.py --model-dir CosyVoice2-0.5B --voices-dir voices --speaker-id anna --wav anna.wav --text "What she says."
    register_voice.py --model-dir CosyVoice2-0.5B --voices-dir voices --import-spk2info CosyVoice2-0.5B/spk2info.pt
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import soundfile
from tokenizers import decoders

from bistream.checkpoint import QWEN_DIRECTORY, find_file, read_config
from bistream.config import FlowConfig, RuntimeConfig
from bistream.errors import BistreamError, InvalidInputError
from bistream.rates import REFERENCE_SAMPLE_RATE, SPEECH_TOKENS_PER_SECOND
from bistream.resample import resample
from bistream.text.tokenizer import TextTokenizer
from bistream.token2mel.checks import check_prompt
from bistream.types import FloatArray, VoicePrompt
from bistream.voice.build import build_voice_prompt
from bistream.voice.reference_audio import check_reference_audio
from bistream.voice.registry import VoiceRegistry
from bistream.voice.speaker_encoder import SpeakerEncoder
from bistream.voice.speech_tokenizer import SpeechTokenizer
from bistream.voice.spk2info import read_spk2info


def read_reference(path: Path) -> FloatArray:
    """An audio file of at least 16 kHz as float32 [N] at 16 kHz, channels averaged. Raises ``InvalidInputError``."""
    try:
        samples, sample_rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError) as error:
        raise InvalidInputError(f"{path} could not be read as audio ({error}); name a WAV or FLAC file.") from error
    if sample_rate < REFERENCE_SAMPLE_RATE:
        raise InvalidInputError(f"{path} has {sample_rate} samples per second; record at {REFERENCE_SAMPLE_RATE} or more.")
    return resample(samples.mean(axis=1), sample_rate, REFERENCE_SAMPLE_RATE)


def analyse(model_dir: Path, wav: Path, transcript: str) -> VoicePrompt:
    """The voice of a recording."""
    if not transcript.strip():
        raise InvalidInputError("The transcript is empty; give the words of the recording with --text.")
    waveform = check_reference_audio(read_reference(wav), None, RuntimeConfig())
    tokens = SpeechTokenizer.from_model_dir(model_dir).tokens(waveform)
    return build_voice_prompt(waveform, transcript.strip(), tokens, SpeakerEncoder.from_model_dir(model_dir).embedding(waveform))


def text_decoder(model_dir: Path) -> Callable[[Sequence[int]], str]:
    """Text ids to text, with the tokenizer of the model directory."""
    symbols: dict[str, int] = json.loads(find_file(model_dir, f"{QWEN_DIRECTORY}/vocab.json").read_text(encoding="utf-8"))
    by_id = {index: symbol for symbol, index in (symbols | TextTokenizer.from_model_dir(model_dir).special_tokens).items()}
    byte_level = decoders.ByteLevel()
    return lambda ids: str(byte_level.decode([by_id[index] for index in ids]))


def import_speakers(model_dir: Path, registry: VoiceRegistry, flow: FlowConfig, path: Path, renamed: dict[str, str]) -> list[str]:
    """Register every speaker of a ``spk2info.pt``. Returns the ids."""
    voices = read_spk2info(path, text_decoder(model_dir))
    for name in renamed:
        if name not in voices:
            raise InvalidInputError(f"{path.name} has no speaker {name!r}; it has {', '.join(map(repr, voices))}.")
    for name, voice in voices.items():
        try:
            check_prompt(voice, flow)
        except InvalidInputError as error:
            raise InvalidInputError(f"Speaker {name!r} belongs to another model; import it with that one. ({error})") from error
        try:
            registry.save(renamed.get(name, name), voice)
        except InvalidInputError as error:
            raise InvalidInputError(f"Speaker {name!r} cannot keep its name; give it another with --rename {name}=ID. ({error})") from error
    return [renamed.get(name, name) for name in voices]


def _rename(text: str) -> tuple[str, str]:
    name, separator, speaker_id = text.rpartition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW")
    return name, speaker_id


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", type=Path, required=True, help="CosyVoice2 model directory")
    parser.add_argument("--voices-dir", type=Path, required=True, help="directory of registered voices (voices_dir of the server)")
    parser.add_argument("--speaker-id", help="name of the voice: 1 to 64 of A-Z a-z 0-9 _ -")
    parser.add_argument("--wav", type=Path, help="recording, 0.5 to 30 s, 16 kHz or more")
    parser.add_argument("--text", help="transcript of the recording")
    parser.add_argument("--import-spk2info", type=Path, metavar="FILE", help="import all speakers of upstream's spk2info.pt instead")
    parser.add_argument("--rename", type=_rename, action="append", default=[], metavar="OLD=NEW", help="other id for an imported speaker")
    arguments = parser.parse_args()
    single = (arguments.speaker_id, arguments.wav, arguments.text)
    if arguments.import_spk2info is None and None in single:
        parser.error("give --speaker-id, --wav and --text, or --import-spk2info")
    if arguments.import_spk2info is not None and any(value is not None for value in single):
        parser.error("--import-spk2info goes without --speaker-id, --wav and --text")
    if arguments.rename and arguments.import_spk2info is None:
        parser.error("--rename goes with --import-spk2info")
    return arguments


def main() -> int:
    arguments = _arguments()
    registry = VoiceRegistry(arguments.voices_dir)
    try:
        flow = read_config(arguments.model_dir).flow
        if arguments.import_spk2info is not None:
            speaker_ids = import_speakers(arguments.model_dir, registry, flow, arguments.import_spk2info, dict(arguments.rename))
        else:
            voice = analyse(arguments.model_dir, arguments.wav, arguments.text)
            check_prompt(voice, flow)
            registry.save(arguments.speaker_id, voice)
            speaker_ids = [arguments.speaker_id]
    except BistreamError as error:
        print(error, file=sys.stderr)
        return 1
    for speaker_id in speaker_ids:
        seconds = registry.load(speaker_id).speech_tokens.shape[0] / SPEECH_TOKENS_PER_SECOND
        print(f"{speaker_id}: {seconds:.2f} s of prompt in {arguments.voices_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
