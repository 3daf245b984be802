"""The interface between the token2wav service and the networks that turn speech tokens into audio. No torch.

The service knows sessions, leases, order and batches; a renderer knows networks, their state and their valid inputs. Another flow or
vocoder is a new folder and a ``SpeechRenderer`` that ``factory.load_renderer`` chooses.

Contract:

- the checks are pure and may be called from any thread; everything else is called by one worker thread, one call at a time;
- ``open`` and the checks raise ``BistreamError`` and nothing else; the rest raises nothing, an error is an outcome;
- ``prepare`` and each part of an ``Utterance`` take milliseconds; hops run between them, and change nothing about their results;
- hops in progress may stop after any step while other hops are begun and finished, and go on later with the same results; until they have
  ended their renderings are neither closed nor given another hop;
- an error of one rendering is its outcome alone; an unexpected exception is the outcome of all renderings computed with it;
- ``Rendering.close`` frees everything the rendering holds, is idempotent, and is the only way to free it;
- every token yields the same number of samples: up to the final hop, tokens x sample rate / tokens per second in total, and at another
  speed what ``hops.speeds`` says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bistream.checkpoints.config import CheckpointConfig
from bistream.errors import BistreamError, CheckpointError
from bistream.types import FloatArray, VoicePrompt

if TYPE_CHECKING:
    from bistream.gpu.tier import TierChoice

Outcome = FloatArray | BistreamError  # waveform float32 [N], N possibly 0
Utterance = Iterator[Outcome | None]  # a whole one in the making: with the last part the outcome. Dropping it frees everything


@dataclass(frozen=True)
class RendererSizes:
    """Rates and sizes of inputs and outputs, from the checkpoint.

    samples_per_frame: audio samples per mel frame. speaker_embedding_size: width of the speaker vector.
    shares_batches: hops of several sessions are computed together; False where that would change their samples, if only by rounding.
    chunks_join: samples do not depend on how many complete chunks a hop has, but for rounding; False where rounding matters, too.
    may_hurry: a hop may have fewer tokens behind what is heard than the networks see (``RendererHop.lookahead_tokens``).
    """

    sample_rate: int
    samples_per_frame: int
    frames_per_token: int
    mel_bins: int
    speaker_embedding_size: int
    shares_batches: bool = True
    chunks_join: bool = False
    may_hurry: bool = False

    @property
    def tokens_per_second(self) -> float:
        return self.sample_rate / (self.samples_per_frame * self.frames_per_token)


class HopsInProgress(Protocol):
    """Hops that are computed together, in steps. A renderer whose hops cannot stop has one step."""

    @property
    def steps_left(self) -> int: ...

    def step(self) -> None:
        """One step. The device has finished when this returns."""

    def finish(self) -> list[Outcome]:
        """All steps that are left, without a pause: the next waveform of each rendering, in the order of the hops."""


class Rendering(Protocol):
    """A renderer's state of one session."""

    @property
    def needs_preparation(self) -> bool:
        """Whether its first hop would take long: ``prepare`` it beforehand, as often as this is true."""

    def close(self) -> None:
        """Free everything. Idempotent."""


@dataclass(frozen=True)
class RendererHop:
    """New speech tokens of one rendering. finalize: the last hop, which emits everything withheld.

    lookahead_tokens: those behind the last one that is heard, if fewer than the networks see; 0 where the speech pauses. speed: of the new
    tokens; other than 1 only where there is a mel (``RendererSizes.mel_bins``).
    """

    rendering: Rendering
    token_ids: Sequence[int]
    finalize: bool
    lookahead_tokens: int | None = None
    speed: float = 1.0


FLOW_PAGES, VOCODER_SLOTS = "flow pages", "vocoder slots"  # names of pools


@dataclass(frozen=True)
class PoolUse:
    """Occupancy of a pool of state memory, in its own units.

    reserve: what each session has whatever happens. most: what one session takes at most; 0: no bound. Both beside its voice's share.
    promised: what live sessions are sure of and do not use yet.
    """

    used: int
    total: int
    reserve: int = 0
    most: int = 0
    promised: int = 0


class SpeechRenderer(Protocol):
    """See the module's contract."""

    @property
    def sizes(self) -> RendererSizes: ...

    @property
    def tiers(self) -> tuple[TierChoice, ...]:
        """The tier of each network."""

    @property
    def healthy(self) -> bool:
        """False when only restarting the process can help."""

    @property
    def pools(self) -> Mapping[str, PoolUse]:
        """Bounded memory by name (those above; a renderer may lack one). May be read from any thread, during a hop as well."""

    def check_tokens(self, token_ids: Sequence[int]) -> list[int]:
        """The tokens as plain integers. Raises ``InvalidInputError`` unless all of them are valid speech codes."""

    def check_length(self, tokens: int) -> None:
        """tokens: of a prompt and an utterance, or its first hop. Raises ``InvalidInputError`` for more than are computed at once."""

    def check_prompt(self, prompt: VoicePrompt) -> None:
        """Raises ``InvalidInputError`` for shapes that do not match ``sizes`` and for invalid tokens."""

    def open(self, prompt: VoicePrompt, seed: int, expected_speech_s: float | None = None) -> Rendering:
        """Begin a rendering. Raises ``BusyError`` where its state cannot be guaranteed, ``InvalidInputError``, ``EngineError``.

        expected_speech_s: its state is guaranteed for so much speech, if that is less than usual; None: for as much as usual.
        """

    def begin(self, hops: Sequence[RendererHop]) -> HopsInProgress:
        """The next waveform of each rendering, computed together; a rendering occurs at most once."""

    def prepare(self, rendering: Rendering) -> None:
        """A part of the state of the rendering's voice. A failure is the outcome of its next hop."""

    def begin_utterance(self, token_ids: Sequence[int], prompt: VoicePrompt, seed: int, speed: float) -> Utterance:
        """A whole utterance with full attention; speed as in ``RendererHop``. Computes nothing yet."""


def sizes_of(checkpoint: CheckpointConfig) -> RendererSizes:
    """Raises ``CheckpointError`` where flow and vocoder do not match, or the rates are not the server's.

    The rates are fixed outside the networks, by the family: clients play them, and hops count in them.
    """
    flow, vocoder = checkpoint.flow, checkpoint.vocoder
    if flow.output_size != vocoder.in_channels:
        raise CheckpointError(
            f"The flow outputs {flow.output_size} mel bins, the vocoder expects {vocoder.in_channels}; use files of one checkpoint."
        )
    samples_per_frame = math.prod(vocoder.upsample_rates) * vocoder.istft_hop_len
    sizes = RendererSizes(vocoder.sampling_rate, samples_per_frame, flow.token_mel_ratio, flow.output_size, flow.spk_embed_dim)
    found = (sizes.sample_rate, sizes.samples_per_frame, sizes.frames_per_token)
    served = checkpoint.family.audio_format
    expected = (served.sample_rate, served.samples_per_mel_frame, served.mel_frames_per_token)
    if found != expected:
        raise CheckpointError(
            "The checkpoint has {} Hz, {} samples per mel frame and {} frames per token; ".format(*found)
            + "this server requires {}, {} and {}, use a checkpoint of {}.".format(*expected, checkpoint.family.title)
        )
    return sizes
