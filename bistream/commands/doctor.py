"""Examines a model directory before it is served: its files, and what 16 bit costs each of its networks.

    bistream doctor assets/voice
    bistream doctor /models/CosyVoice2-0.5B
    bistream doctor /models/CosyVoice2-0.5B --text "A longer sentence." --output doctor.wav
    bistream doctor /models/CosyVoice2-0.5B --align

Reads every file, speaks a sentence in float32, then gives each network the same inputs in the dtype that the server uses on a GPU, and
prints the signal-to-error ratio of scores, mel and audio. The server itself measures the same at its start, with other inputs, and
computes a network in float32 that would be spoilt. On a CPU it serves in float32 anyway. Exit codes: 0 it can be served, 1 it cannot, for
the reason in the last line.

--align speaks four sentences instead and finds the attention head of the language model that follows the text, from which the server tells
which word is spoken (``text_position``). It writes the head into MODEL_DIR/alignment.json, which the server reads at its start.
"""

from __future__ import annotations

import argparse
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import soundfile
import torch

from bistream.audio.reference_tone import recording
from bistream.checkpoints.alignment import ALIGNMENT_FILE
from bistream.checkpoints.config import CheckpointConfig
from bistream.checkpoints.files import family_of
from bistream.checkpoints.reader import read_config
from bistream.client.exit_codes import EXIT_OK, fail
from bistream.commands.alignment import find_head, report
from bistream.commands.checkpoint_report import describe
from bistream.commands.waiting import Waiting
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError, EngineError, InvalidInputError
from bistream.gpu.device import resolve_device
from bistream.gpu.fidelity import Fidelity
from bistream.keeper.golden import SEED, TEXT, TRANSCRIPT, audio_fault
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token import fidelity as language_model
from bistream.text2token.service import LanguageModelStart, SpeechTokenService
from bistream.text2token.step_runners import device_and_dtype
from bistream.text2token.weights import load_weights
from bistream.token2mel.factory import resolve_dtype
from bistream.token2wav import fidelity as token2wav
from bistream.types import FloatArray, GenerationOptions, SpeechTokens, VoicePrompt
from bistream.voice.build import build_voice_prompt
from bistream.voice.speaker_encoder import SpeakerEncoder
from bistream.voice.speech_tokenizer import SpeechTokenizer

EXIT_FAULT = 1
DTYPES = ("auto", "bfloat16", "float16")


@dataclass(frozen=True)
class Examined:
    fidelities: tuple[Fidelity, ...]
    waveform: FloatArray


def examine(config: RuntimeConfig, dtype: str, text: str) -> Examined:
    """Speak ``text`` in the voice of the golden utterance. dtype: auto is what the server chooses on a GPU. Raises ``BistreamError``."""
    checkpoint = read_config(config.model_dir)
    plain = replace(config, dtype="float32", kernels="plain", max_sessions=1)
    with Waiting("1 of 4: analysing a recording") as waiting:
        voice = _voice(plain)
        waiting.goes_on("2 of 4: language model in float32")
        tokens = _speech_tokens(
            plain, voice, text, lambda count: waiting.goes_on(f"2 of 4: language model in float32, {count} speech tokens")
        )
        waiting.goes_on("3 of 4: language model in 16 bit")
        of_language_model = _examine_language_model(plain, checkpoint, dtype, voice, text, tokens)
        waiting.goes_on("4 of 4: flow and vocoder, in float32 and in 16 bit")
        flow_dtype = torch.float16 if dtype == "auto" else resolve_dtype(dtype, resolve_device(config.device))
        measured = token2wav.measure(plain, checkpoint, flow_dtype, voice, tokens)
    return Examined((of_language_model, measured.flow, measured.vocoder), measured.waveform)


def _voice(config: RuntimeConfig) -> VoicePrompt:
    wav = recording()
    tokens = SpeechTokenizer.from_config(config).tokens(wav)
    embedding = SpeakerEncoder.from_config(config).embedding(wav)
    return build_voice_prompt(wav, TRANSCRIPT, tokens, embedding, family_of(config.model_dir).mel_high_hz)


def _speech_tokens(config: RuntimeConfig, voice: VoicePrompt, text: str, tell: Callable[[int], None]) -> list[int]:
    """Of the whole text, raw codes. tell: how many there are so far. Raises ``BistreamError``."""
    messages: queue.SimpleQueue[SpeechTokens | BistreamError] = queue.SimpleQueue()
    service = SpeechTokenService(config)
    try:
        start = LanguageModelStart("doctor", text.encode(), True, voice.prompt_text, voice.speech_tokens, GenerationOptions(seed=SEED))
        service.start(start, messages.put)
        tokens: list[int] = []
        while True:
            message = messages.get()
            if isinstance(message, BistreamError):
                raise message
            tokens += message.token_ids
            tell(len(tokens))
            if message.is_final:
                return tokens
    finally:
        service.close()


def _examine_language_model(
    config: RuntimeConfig, checkpoint: CheckpointConfig, dtype: str, voice: VoicePrompt, text: str, tokens: Sequence[int]
) -> Fidelity:
    sizes, device = checkpoint.language_model, resolve_device(config.device)
    chosen = device_and_dtype(config.device, dtype)[1]
    if dtype == "auto" and device.type == "cpu":
        chosen = torch.bfloat16
    tokenizer = TextTokenizer.from_model_dir(config.model_dir)
    text_ids = [*tokenizer.encode(voice.prompt_text), *tokenizer.encode(text)]
    ids = language_model.sequence_ids(sizes, text_ids, [*voice.speech_tokens.tolist(), *tokens])
    return language_model.measure(sizes, load_weights(config.model_dir, sizes, device, torch.float32), chosen, ids)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", metavar="MODEL_DIR", help="the directory of a checkpoint")
    parser.add_argument("--text", default=TEXT, help="what to speak (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="auto (default) | cpu | cuda | cuda:N")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="of language model and flow; auto: what the server uses on a GPU")
    parser.add_argument("--align", action="store_true", help="find the attention head that follows the text, and nothing else")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"what --align writes (default: MODEL_DIR/{ALIGNMENT_FILE})")
    parser.add_argument("--output", type=Path, metavar="FILE", help="keep what was spoken in float32, as WAV")
    return parser


def run(options: argparse.Namespace) -> None:
    """Raises ``BistreamError`` for whatever keeps the directory from being served."""
    for line in describe(options.model_dir):
        print(line, flush=True)
    config = RuntimeConfig(model_dir=str(options.model_dir), device=options.device)
    family = family_of(config.model_dir)
    if family.has_codec:
        print("what 16 bit costs is measured where a GPU serves it; the golden utterance of a start says whether it speaks")
        return
    audio_format = family.audio_format
    resolve_device(config.device)
    examined = examine(config, options.dtype, options.text)
    seconds = len(examined.waveform) / audio_format.sample_rate
    print(f"spoke {options.text!r}: {seconds:.2f} s, {seconds * audio_format.tokens_per_second:.0f} speech tokens, in float32")
    if (fault := audio_fault(examined.waveform)) is not None:
        raise EngineError(f"In float32 the audio {fault}, so the weights are not those of a speech model; restore them.")
    for fidelity in examined.fidelities:
        print(fidelity.sentence)
        if not fidelity.is_enough:
            print(f"  -> on a GPU the server computes {fidelity.stage} in float32 where its setting dtype is auto")
    if options.output is not None:
        try:
            soundfile.write(options.output, examined.waveform, audio_format.sample_rate)
        except (OSError, soundfile.LibsndfileError) as error:
            raise InvalidInputError(f"{options.output} cannot be written ({error}); choose another --output.") from None


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.model_dir is None:
        parser.error(
            "name the model directory: assets/voice, which ships with bistream, or that of a checkpoint; "
            "`bash run.sh 0 0` downloads CosyVoice2-0.5B, with FAMILY=cosyvoice3 or spark another"
        )
    try:
        if options.align:
            score = find_head(RuntimeConfig(model_dir=str(options.model_dir), device=options.device))
            print(report(score, options.out or options.model_dir / ALIGNMENT_FILE))
            return EXIT_OK
        run(options)
    except BistreamError as error:
        return fail(error.sentence, EXIT_FAULT)
    print(f"{options.model_dir} can be served")
    return EXIT_OK
