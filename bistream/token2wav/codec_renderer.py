"""The renderer of a family whose codec makes audio of speech tokens in one pass (``token2wav.renderer``'s contract).

A hop is a push of tokens to the incremental decoder, in float32 or TF32; whole utterances are pushed in pieces, so that hops run between
them. Nothing is random, and what a session keeps has a fixed size, so there are no pools.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bistream.bicodec.decoding import check_semantic
from bistream.bicodec.network import BiCodec
from bistream.bicodec.stream import SpeechDecoder, SpeechState, TokenPush
from bistream.bicodec.weights import load_codec
from bistream.config import RuntimeConfig
from bistream.errors import BistreamError, EngineError, InvalidInputError
from bistream.gpu.device import open_device, resolve_device
from bistream.gpu.tier import Tier, TierChoice, choose_tier
from bistream.processes.start_phases import phase
from bistream.token2wav.renderer import HopsInProgress, Outcome, PoolUse, RendererHop, RendererSizes, Rendering, Utterance
from bistream.types import FloatArray, VoicePrompt

logger = logging.getLogger(__name__)

MAX_FAILURES_IN_A_ROW = 3  # as of the other renderer: a single failed batch may be due to its inputs
PIECE_TOKENS = 50  # of a whole utterance, between two chances for a hop


@dataclass(eq=False)
class CodecRendering:
    """``renderer.Rendering``."""

    state: SpeechState
    needs_preparation: bool = False

    def close(self) -> None:
        self.state.close()


class CodecHops:
    """``renderer.HopsInProgress``: one step."""

    def __init__(self, compute: Callable[[], list[Outcome]]) -> None:
        self._compute = compute
        self._outcomes: list[Outcome] | None = None

    @property
    def steps_left(self) -> int:
        return 0 if self._outcomes is not None else 1

    def step(self) -> None:
        if self._outcomes is None:
            self._outcomes = self._compute()

    def finish(self) -> list[Outcome]:
        self.step()
        assert self._outcomes is not None
        return self._outcomes


class CodecRenderer:
    """``renderer.SpeechRenderer``."""

    def __init__(self, network: BiCodec, decoder: SpeechDecoder, sizes: RendererSizes, tier: TierChoice) -> None:
        self.sizes = sizes
        self.tiers = (tier,)
        self.pools: dict[str, PoolUse] = {}
        self._network = network
        self._decoder = decoder
        self._failures_in_a_row = 0

    @classmethod
    def load(cls, config: RuntimeConfig) -> CodecRenderer:
        """Raises ``CheckpointError`` and ``ConfigError``."""
        device = resolve_device(config.device)
        open_device(device)
        with phase("codec: weights read"):
            network = load_codec(config.model_dir, device)
        network.tf32 = config.dtype != "float32"  # and no 16 bit, which is no faster here and at least 5 dB worse
        codec = network.config
        sizes = RendererSizes(
            codec.recording.sample_rate,
            codec.samples_per_token,
            frames_per_token=1,
            mel_bins=0,
            speaker_embedding_size=codec.speaker.tokens,
            may_hurry=True,
            shares_batches=device.type != "cpu",  # matrix libraries of CPUs sum by the shape of a product
        )
        dtype = torch.bfloat16 if network.tf32 else torch.float32  # TF32 counts as 16 bit
        tier = choose_tier("codec", config.kernels, device, dtype)
        with phase("codec: recording"):
            decoder = SpeechDecoder(network, records=tier.tier is Tier.GRAPHS)
        return cls(network, decoder, sizes, tier)

    @property
    def healthy(self) -> bool:
        return self._failures_in_a_row < MAX_FAILURES_IN_A_ROW

    def check_tokens(self, token_ids: Sequence[int]) -> list[int]:
        tokens = [int(token) for token in token_ids]
        check_semantic(self._network, np.array(tokens, np.int64))
        return tokens

    def check_length(self, tokens: int) -> None:
        """Whole utterances are computed in pieces."""

    def check_prompt(self, prompt: VoicePrompt) -> None:
        self.check_tokens(prompt.speech_tokens.tolist())
        speaker, size = prompt.speaker_embedding, self.sizes.speaker_embedding_size
        if speaker.shape != (size,) or not np.array_equal(speaker, np.rint(speaker)):
            raise InvalidInputError(f"prompt_spk_embedding has shape {list(speaker.shape)}; it must be the {size} numbers of a voice.")
        if not (0 <= speaker.min() and speaker.max() < self._network.config.speaker.codes):
            raise InvalidInputError(f"The numbers of a voice must be 0 to {self._network.config.speaker.codes - 1}.")

    def open(self, prompt: VoicePrompt, seed: int, expected_speech_s: float | None = None) -> CodecRendering:
        try:
            return CodecRendering(self._decoder.open(prompt.speaker_embedding.astype(np.int32)))
        except BistreamError:
            raise
        except Exception:
            raise self._failed() from None

    def begin(self, hops: Sequence[RendererHop]) -> HopsInProgress:
        pushes = [
            TokenPush(_own(hop.rendering).state, np.array(hop.token_ids, np.int32), hop.finalize, hop.lookahead_tokens) for hop in hops
        ]
        return CodecHops(lambda: self._push(pushes))

    def prepare(self, rendering: Rendering) -> None:
        raise AssertionError("no voice needs it")

    def begin_utterance(self, token_ids: Sequence[int], prompt: VoicePrompt, seed: int, speed: float) -> Utterance:
        tokens = np.array(token_ids, np.int32)
        try:
            state = self.open(prompt, 0).state
        except BistreamError as error:
            yield error
            return
        waveforms = []
        for start in range(0, len(tokens), PIECE_TOKENS):
            piece = tokens[start : start + PIECE_TOKENS]
            (outcome,) = self._push([TokenPush(state, piece, start + PIECE_TOKENS >= len(tokens))])
            if isinstance(outcome, BistreamError):
                yield outcome
                return
            waveforms.append(outcome)
            yield None
        yield np.concatenate(waveforms)

    @torch.inference_mode()
    def _push(self, pushes: Sequence[TokenPush]) -> list[Outcome]:
        try:
            waveforms = self._decoder.push(pushes)
        except Exception:
            error = self._failed()
            return [error for _ in pushes]
        self._failures_in_a_row = 0
        return [_checked(waveform) for waveform in waveforms]

    def _failed(self) -> EngineError:
        """Logs the exception being handled; the caller gets one sentence."""
        logger.exception("computing speech failed")
        self._failures_in_a_row += 1
        return EngineError("Computing the speech failed; open a new session and try again.")


def _own(rendering: Rendering) -> CodecRendering:
    assert isinstance(rendering, CodecRendering), "a rendering of another renderer"
    return rendering


def _checked(waveform: FloatArray) -> Outcome:
    if np.isfinite(waveform).all():
        return np.clip(waveform, -0.99, 0.99)
    return EngineError("The audio contains NaN or infinity; check the voice of this session.")
