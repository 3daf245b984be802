"""The stages of the pipeline one after another, in this process: voices, speech tokens of a batch of texts, waveforms of a batch.

The parts are those of the server (``bistream/local.py``), without orchestrator and deadlines: for benchmarks and offline work, where all
texts are known. A batch is computed as one batch, whatever time it takes.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from bistream.checkpoints.files import family_of
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError
from bistream.families.audio_format import AudioFormat
from bistream.local import LocalVoice, VoiceChoice
from bistream.metrics.stage_times import StageTimes
from bistream.sessions.named_voices import open_voices
from bistream.text2token.service import LanguageModelStart, SpeechTokenService
from bistream.token2mel.state_budget import unshared_session_s
from bistream.token2wav.factory import load_renderer
from bistream.token2wav.hop_jobs import MAX_HOP_TOKENS, check_prompt
from bistream.token2wav.renderer import Outcome, RendererHop, Rendering
from bistream.types import FloatArray, GenerationOptions, SpeechTokens, VoicePrompt
from bistream.voice.build import join_voice_prompt
from bistream.voice.conditioning import condition_reference
from bistream.voice.manner import language_prompt

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Speech:
    """What is rendered: speech codes in a voice."""

    tokens: Tokens
    prompt: VoicePrompt


def hop_sizes(prompt_tokens: int, total: int, rates: AudioFormat) -> list[int]:
    """New tokens of each hop of an utterance: as many as a hop may have, up to where the flow commits its state (multiples of a chunk from
    the start of the prompt), and those of the lookahead; the last hop has the rest."""
    sizes, sent = [], 0
    while total - sent > MAX_HOP_TOKENS:
        boundary = (prompt_tokens + sent + MAX_HOP_TOKENS - rates.lookahead_tokens) // rates.chunk_tokens * rates.chunk_tokens
        sizes.append(boundary + rates.lookahead_tokens - prompt_tokens - sent)
        sent += sizes[-1]
    return [*sizes, total - sent]


class Stages:
    """All networks of ``config.model_dir``, for batches of up to ``config.max_sessions``. One thread only; ``close`` it."""

    def __init__(self, config: RuntimeConfig, with_language_model: bool = True) -> None:
        """Raises ``ConfigError`` and ``CheckpointError``."""
        self._family = family_of(config.model_dir)
        self._config = config
        self._voices = open_voices(config)
        with ExitStack() as stack:
            self._voice = LocalVoice(config, StageTimes())
            self._language_model: SpeechTokenService | None = None
            if with_language_model:
                self._language_model = SpeechTokenService(config)
                stack.callback(self._language_model.close)
            session_s = unshared_session_s(config.max_sessions, config.flow_context_s)
            self.renderer = load_renderer(config, session_s)
            stack.pop_all()

    @property
    def audio_format(self) -> AudioFormat:
        return self._family.audio_format

    def voice(self, choice: VoiceChoice) -> VoicePrompt:
        """Of a recording with its transcript, or a named one. Raises ``BistreamError``."""
        if choice.speaker_id is not None:
            return self._voices.load(choice.speaker_id)
        assert choice.reference_wav is not None, "a voice"
        wav = condition_reference(choice.reference_wav, self._config)
        tokens, speaker = self._voice.prompt_speech_tokens(wav), self._voice.speaker_features(wav)
        prompt = join_voice_prompt(choice.reference_text or "", speaker.mel, tokens, speaker.embedding)
        check_prompt(self.renderer, prompt)
        return prompt

    def speech_tokens(
        self, texts: Sequence[tuple[str, VoicePrompt]], sampling: GenerationOptions, is_cross_lingual: bool = False
    ) -> list[Tokens | BistreamError]:
        """Of whole texts, all together; the error of a text in its place. is_cross_lingual: without the transcripts."""
        assert self._language_model is not None, "the stages have a language model"
        ends: queue.SimpleQueue[int] = queue.SimpleQueue()
        tokens: list[list[int]] = [[] for _ in texts]
        errors: dict[int, BistreamError] = {}

        def listen(index: int, message: SpeechTokens | BistreamError) -> None:
            if isinstance(message, BistreamError):
                errors[index] = message
                ends.put(index)
                return
            tokens[index] += message.token_ids
            if message.is_final:
                ends.put(index)

        for index, (text, prompt) in enumerate(texts):
            told = language_prompt(prompt, sampling.instruct_text, is_cross_lingual)
            speaker = prompt.speaker_embedding.astype(np.int32) if self._family.tells_speaker else np.zeros(0, np.int32)
            start = LanguageModelStart(str(index), text.encode("utf-8"), True, *told, sampling, speaker)
            try:
                self._language_model.start(start, lambda message, index=index: listen(index, message))  # type: ignore[misc]
            except BistreamError as error:
                listen(index, error)
        for _ in texts:
            ends.get()
        return [errors.get(index) or tuple(found) for index, found in enumerate(tokens)]

    def render(self, batch: Sequence[Speech], seed: int) -> list[Outcome]:
        """Waveforms float32 [N], the hops of all utterances together: streaming attention, as in sessions."""
        renderings: list[Rendering | BistreamError] = []
        try:
            for speech in batch:
                renderings.append(self._open(speech, seed))
            plans = [hop_sizes(len(speech.prompt.speech_tokens), len(speech.tokens), self.audio_format) for speech in batch]
            parts: list[list[FloatArray]] = [[] for _ in batch]
            errors = {index: one for index, one in enumerate(renderings) if isinstance(one, BistreamError)}
            for turn in range(max(len(plan) for plan in plans)):
                self._turn(batch, renderings, plans, turn, parts, errors)
        finally:
            for rendering in renderings:
                if not isinstance(rendering, BistreamError):
                    rendering.close()
        return [errors.get(index) or np.concatenate(waveforms) for index, waveforms in enumerate(parts)]

    def render_whole(self, speech: Speech, seed: int) -> Outcome:
        """One utterance with full attention, as ``cosyvoice2`` does it offline."""
        utterance = self.renderer.begin_utterance(speech.tokens, speech.prompt, seed, 1.0)
        return next(outcome for outcome in utterance if outcome is not None)

    def close(self) -> None:
        if self._language_model is not None:
            self._language_model.close()

    def _open(self, speech: Speech, seed: int) -> Rendering | BistreamError:
        try:
            self.renderer.check_length(len(speech.prompt.speech_tokens) + len(speech.tokens))
            rendering = self.renderer.open(speech.prompt, seed)
        except BistreamError as error:
            return error
        while rendering.needs_preparation:
            self.renderer.prepare(rendering)
        return rendering

    def _turn(
        self,
        batch: Sequence[Speech],
        renderings: Sequence[Rendering | BistreamError],
        plans: Sequence[Sequence[int]],
        turn: int,
        parts: list[list[FloatArray]],
        errors: dict[int, BistreamError],
    ) -> None:
        """The hop number ``turn`` of every utterance that has one."""
        indices, hops = [], []
        for index, (speech, rendering, plan) in enumerate(zip(batch, renderings, plans, strict=True)):
            if isinstance(rendering, BistreamError) or index in errors or turn >= len(plan):
                continue
            begin = sum(plan[:turn])
            indices.append(index)
            hops.append(RendererHop(rendering, speech.tokens[begin : begin + plan[turn]], finalize=turn == len(plan) - 1))
        for index, outcome in zip(indices, self.renderer.begin(hops).finish() if hops else [], strict=True):
            if isinstance(outcome, BistreamError):
                errors[index] = outcome
            else:
                parts[index].append(outcome)
