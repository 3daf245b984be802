"""A turn as a pipeline speaks it, without the rest of an agent: words at the pace of a language model in, a WAV file and each word out.

python example.py localhost:8001 --speaker-id anna --output turn.wav
python example.py localhost:8001 --recording assets/reference.wav --transcript "$(cat assets/reference.txt)"
"""

from __future__ import annotations

import argparse
import asyncio
import wave

from pipecat.frames.frames import (
    EndFrame,
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner
from pipecat_bistream import BistreamTTSService, Speaker

WORDS = "The first words are heard while the last ones are still being written. ".split(" ")
WORDS_PER_SECOND = 10
SAMPLE_RATE = 24000


class Recorder(FrameProcessor):
    """Writes what a transport would play."""

    def __init__(self, output: str) -> None:
        super().__init__()
        self._file = wave.open(output, "wb")
        self._file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", "NONE"))

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self._file.writeframes(frame.audio)
        elif isinstance(frame, TTSTextFrame):
            print(frame.text)
        await self.push_frame(frame, direction)

    async def cleanup(self) -> None:
        await super().cleanup()  # type: ignore[no-untyped-call]
        self._file.close()


async def write(worker: PipelineWorker) -> None:
    """As a language model would."""
    await worker.queue_frame(LLMFullResponseStartFrame())
    for word in WORDS:
        await worker.queue_frame(LLMTextFrame(f"{word} "))
        await asyncio.sleep(1 / WORDS_PER_SECOND)
    await worker.queue_frames([LLMFullResponseEndFrame(), EndFrame()])


async def speak(address: str, speaker: Speaker, output: str) -> None:
    pipeline = Pipeline([BistreamTTSService(address, speaker), Recorder(output)])
    worker = PipelineWorker(pipeline, params=PipelineParams(audio_out_sample_rate=SAMPLE_RATE, enable_metrics=True))
    runner = WorkerRunner()
    await runner.add_workers(worker)
    await asyncio.gather(runner.run(), write(worker))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="of the server's gRPC port")
    voice = parser.add_mutually_exclusive_group(required=True)
    voice.add_argument("--speaker-id", help="a registered voice or a preset of the server")
    voice.add_argument("--recording", help="a sound file of 0.5 to 30 s")
    parser.add_argument("--transcript", help="what is said in the recording")
    parser.add_argument("--output", default="turn.wav")
    options = parser.parse_args()
    if options.recording is not None:
        speaker = Speaker.recorded(options.recording, options.transcript)
    else:
        speaker = Speaker(speaker_id=options.speaker_id)
    asyncio.run(speak(options.address, speaker, options.output))


if __name__ == "__main__":
    main()
