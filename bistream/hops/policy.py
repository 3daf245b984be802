"""Decides when a session's next hop is due and how many speech tokens it takes. Pure arithmetic on one session's progress; no torch.

In: ``HopProgress`` of one session. Out: a ``DueHop``, or None to wait. Called by the orchestrator whenever tokens arrive, a
hop is done, the language model rests or ends, or ``recheck_after_s`` has passed. There is no state between calls: sessions cannot
influence each other.

Where a hop ends changes the samples: the flow emits an incomplete chunk with less context, and the vocoder fades from hop to hop. So
**where** hops end follows from the voice and the number of tokens alone, and time decides only **when** they go out, but for rule 5. A
boundary is a number of spoken tokens; a hop up to it takes the flow's 3 lookahead tokens too.

1. The first hop speaks ``first_hop_tokens`` where all text was in one request, and of faster speech as many more as make the same audio.
   Where it comes in pieces, the language model speaks in blocks of 15 tokens for 5 text tokens, the first one shorter by the prompt's
   speech in it, and then may rest until the text goes on: the first hop speaks all of the first block but the lookahead, or of two blocks
   where that is less than ``min_first_hop_tokens``, or would be heard for less than the next hop takes (``first_latency_s``).
2. The second hop speaks at most 15 tokens (a block) more, because the listener has only the first one's audio meanwhile.
3. All later hops end on multiples of 25 tokens counted from the start of the voice prompt, where the flow commits its caches, at
   least ``min_hop_tokens`` and at most ``min_hop_tokens + 24`` away: nothing is computed twice there. So may the second one. Those of a
   whole text grow by a chunk for every two that were spoken, up to ``max_chunks``, and fewer of slow speech: their listener has audio by
   then, and long hops cost less for each second of it.
4. A hop goes out as soon as its tokens are there, also when the language model has ended meanwhile; what is left after the last
   boundary goes in the last hop, which may be empty. The first hop of a text in pieces waits until the next block is in sight
   (``next_block_s``), so that the listener does not hear a gap, but for ``first_hop_patience_s`` at most; and not with the tokens of two
   blocks where the text is slower than speech (``block_every_s``), because waiting cannot avoid a gap then.
5. Where the language model rests and the listener's audio runs out, the tokens that are there go out: a pause of the text must not
   hold back what was said before it. That is always the end of a block. It is the only boundary that time decides, and the hop after it
   is back at those of rule 3.
6. Where all text of a sentence stands before its speech (``BlockLayout.interleaved`` is False) and the language model rests, the sentence
   is over: its remaining tokens go at once, as a *flush*, because the next sentence has its own beginning. All counts then begin anew. Nor
   do the first two hops wait for all of the lookahead there, but for ``first_lookahead_tokens`` and ``second_lookahead_tokens``: their
   audio is then an approximation.
7. Where chunks join (``chunks_join``: samples do not depend on how many complete chunks a hop has), hops of a text in pieces grow like
   those of a whole text, and time decides how many chunks they have: a hop waits for the tokens of all of them only while the listener
   has a second of audio for each that is there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bistream.config import RuntimeConfig
from bistream.families.audio_format import AudioFormat
from bistream.families.family import BlockLayout, Family
from bistream.hops.progress import DueHop, HopProgress

_INSTANT_S = 1e-6  # step just past a threshold
_SPOKEN_PER_CHUNK = 2  # chunks
_SECOND_LOOKAHEAD = 25  # of Spark-TTS: 88 dB from exact at random weights, where 10 are 25
_AUDIO_PER_CHUNK_S = 1.0  # of a listener, for each chunk that could go out, before its hop waits no longer for another one


@dataclass(frozen=True)
class HopPolicy:
    """Settings of the rules above, and the family's numbers in them. Token counts exclude the lookahead.

    first_lookahead_tokens, second_lookahead_tokens: of these hops; None: as later. first_latency_s: assumed for the first hop, which the
    session has not measured yet.
    """

    audio_format: AudioFormat
    blocks: BlockLayout
    first_hop_tokens: int = Family.first_hop_tokens
    min_first_hop_tokens: int = 9
    min_hop_tokens: int = 5
    urgent_buffer_s: float = 0.15
    first_hop_patience_s: float = 0.5
    first_latency_s: float = 0.06
    max_chunks: int = RuntimeConfig.max_hop_chunks
    first_lookahead_tokens: int | None = None
    second_lookahead_tokens: int | None = None

    @classmethod
    def of(cls, family: Family, config: RuntimeConfig) -> HopPolicy:
        usual, first = family.audio_format.lookahead_tokens, config.first_lookahead_tokens
        hurries = not family.blocks.interleaved and first < usual
        return cls(
            family.audio_format,
            family.blocks,
            config.first_hop_tokens or family.first_hop_tokens,
            max_chunks=config.max_hop_chunks,
            first_lookahead_tokens=first if hurries else None,
            second_lookahead_tokens=min(max(first, _SECOND_LOOKAHEAD), usual) if hurries else None,
        )

    def due_hop(self, progress: HopProgress) -> DueHop | None:
        """The hop to send now; None: wait.

        It is not the last one where it ends on a boundary, even where no token is left: whether the end is known by then is a matter of
        time."""
        count = self.next_hop(progress)
        if count is None:
            return None
        is_last = count == progress.pending_tokens and count < self._target(progress)
        if is_last and self._is_over(progress):
            return DueHop.flush(count)
        lookahead = self._lookahead(progress)
        return DueHop(count, is_last and progress.has_ended, None if lookahead == self.audio_format.lookahead_tokens else lookahead)

    def next_hop(self, progress: HopProgress) -> int | None:
        """Tokens to send now, the lookahead included; None: wait. 0 only in the last hop of a session or a sentence."""
        target, pending = self._target(progress), progress.pending_tokens
        if pending >= target:
            return target if progress.sent_tokens or self._may_begin(progress) else None
        if progress.has_ended or self._is_over(progress):
            return pending
        if (chunks := self._ready_chunks(progress)) and self._waits_s(progress, chunks) <= 0.0:
            return self._tokens_of(progress, chunks)
        if self._may_be_cut(progress) and progress.playback_buffer_s <= self._urgent_s(progress):
            return pending
        return None

    def has_first_tokens(self, progress: HopProgress) -> bool:
        """Whether the tokens of the first hop are there."""
        return progress.received_tokens >= self._first_boundary(progress) + self._first_lookahead

    def recheck_after_s(self, progress: HopProgress) -> float | None:
        """Seconds until the answer changes from None to a hop without further tokens; None: never."""
        if self.next_hop(progress) is not None:
            return None
        if progress.sent_tokens == 0:
            return self._begins_after_s(progress) if progress.pending_tokens >= self._target(progress) else None
        if chunks := self._ready_chunks(progress):
            return self._waits_s(progress, chunks) + _INSTANT_S
        return progress.playback_buffer_s - self._urgent_s(progress) + _INSTANT_S if self._may_be_cut(progress) else None

    def wanted_tokens(self, progress: HopProgress) -> int:
        """Tokens still missing for the next hop, or for the one after it if that is due; a chunk if there are enough for both."""
        if self._is_over(progress):
            progress = replace(progress, received_tokens=0, sent_tokens=0, is_resting=False)  # its last tokens go in a flush
        missing = self._missing_tokens(progress)
        if missing <= 0 and not (progress.sent_tokens or self._may_begin(progress)):
            return 1  # which shows that the next block has begun
        if missing <= 0:
            missing = self._missing_tokens(replace(progress, sent_tokens=progress.sent_tokens + self._target(progress)))
        return missing if missing > 0 else self.audio_format.chunk_tokens

    def _missing_tokens(self, progress: HopProgress) -> int:
        """For the next hop; 0 or less: none."""
        missing = self._target(progress) - progress.pending_tokens
        if progress.chunks_join and missing > 0:
            return (missing - 1) % self.audio_format.chunk_tokens + 1  # the hop may go out without the other chunks
        return missing

    @property
    def withheld_s(self) -> float:
        """Speech that the language model is always ahead, by the lookahead of later hops over that of the first, and nobody hears yet."""
        return (self.audio_format.lookahead_tokens - self._first_lookahead) / self.audio_format.tokens_per_second

    @property
    def _withheld_tokens(self) -> int:
        """Of a hop, at the usual speed, heard with the next one."""
        return self.audio_format.vocoder_overlap_frames // self.audio_format.mel_frames_per_token

    @property
    def _first_lookahead(self) -> int:
        return self.audio_format.lookahead_tokens if self.first_lookahead_tokens is None else self.first_lookahead_tokens

    @property
    def _second_lookahead(self) -> int:
        return self.audio_format.lookahead_tokens if self.second_lookahead_tokens is None else self.second_lookahead_tokens

    def _spoken_tokens(self, progress: HopProgress) -> int:
        """Tokens in hops, without the lookahead: the last boundary."""
        first, sent = self._first_boundary(progress), progress.sent_tokens
        of_first = min(sent - self._first_lookahead, first)
        of_second = min(sent - self._second_lookahead, self._second_boundary(progress, first))
        return max(0, of_first, of_second, sent - self.audio_format.lookahead_tokens)

    def _lookahead(self, progress: HopProgress) -> int:
        """Of the next hop."""
        if not progress.sent_tokens:
            return self._first_lookahead
        is_second = self._spoken_tokens(progress) == self._first_boundary(progress)
        return self._second_lookahead if is_second else self.audio_format.lookahead_tokens

    def _target(self, progress: HopProgress) -> int:
        """Tokens of the hop to the next boundary."""
        return self._boundary(progress) + self._lookahead(progress) - progress.sent_tokens

    def _is_over(self, progress: HopProgress) -> bool:
        """The sentence."""
        return progress.is_resting and not (self.blocks.interleaved or progress.has_ended) and progress.received_tokens > 0

    def _boundary(self, progress: HopProgress) -> int:
        """The next one, in spoken tokens."""
        first, spoken = self._first_boundary(progress), self._spoken_tokens(progress)
        if progress.sent_tokens == 0:
            return first
        if spoken == first:
            return self._second_boundary(progress, first)
        return self._on_grid(progress, spoken) + self._more_chunks(progress) * self.audio_format.chunk_tokens

    def _second_boundary(self, progress: HopProgress, first: int) -> int:
        return min(self._on_grid(progress, first), first + self.blocks.speech_tokens)

    def _on_grid(self, progress: HopProgress, spoken: int) -> int:
        """The end of the first hop that is long enough."""
        chunk = self.audio_format.chunk_tokens
        return -(-(progress.prompt_tokens + spoken + self.min_hop_tokens) // chunk) * chunk - progress.prompt_tokens

    def _more_chunks(self, progress: HopProgress) -> int:
        """Beyond the first one of a hop. None in the second hop, which follows rule 2 however long the first one was."""
        if self._spoken_tokens(progress) == self._first_boundary(progress) or not (progress.is_whole or progress.chunks_join):
            return 0
        chunks = self._spoken_tokens(progress) // (_SPOKEN_PER_CHUNK * self.audio_format.chunk_tokens)
        most = max(1, int(self.max_chunks * min(1.0, progress.speed)))  # slow speech makes the vocoder's part longer
        return min(most, max(1, chunks)) - 1

    def _ready_chunks(self, progress: HopProgress) -> int:
        """Of a hop that lacks tokens: chunks that may go out without the others (rule 7)."""
        lacking = -(-(self._target(progress) - progress.pending_tokens) // self.audio_format.chunk_tokens)
        return max(0, 1 + self._more_chunks(progress) - lacking) if progress.chunks_join else 0

    def _tokens_of(self, progress: HopProgress, chunks: int) -> int:
        """Of a hop with fewer chunks than it is to have."""
        return self._target(progress) - (1 + self._more_chunks(progress) - chunks) * self.audio_format.chunk_tokens

    @staticmethod
    def _waits_s(progress: HopProgress, chunks: int) -> float:
        """How much longer a hop with ``chunks`` ready chunks waits for the rest."""
        return progress.playback_buffer_s - progress.hop_latency_s - chunks * _AUDIO_PER_CHUNK_S

    def _first_boundary(self, progress: HopProgress) -> int:
        if progress.is_whole:
            return math.ceil(self.first_hop_tokens * max(1.0, progress.start_speed))
        block = self.blocks.speech_tokens
        block_end = block - progress.prompt_tokens % block - self.audio_format.lookahead_tokens
        lasting = (self._withheld_tokens + self.first_latency_s * self.audio_format.tokens_per_second) * progress.start_speed
        return block_end if block_end >= max(self.min_first_hop_tokens, lasting) else block_end + block

    def _may_begin(self, progress: HopProgress) -> bool:
        """Whether the hop after the first will be in time, as far as anybody knows."""
        if progress.is_whole or progress.has_ended or progress.waited_s >= self.first_hop_patience_s:
            return True
        return self._lacks_s(progress) <= 0.0

    def _begins_after_s(self, progress: HopProgress) -> float:
        """Until ``_may_begin``: a block that is expected comes nearer, or patience ends."""
        patience_s = self.first_hop_patience_s - progress.waited_s
        return max(0.0, min(patience_s, self._lacks_s(progress))) + _INSTANT_S

    def _lacks_s(self, progress: HopProgress) -> float:
        """By how much the next block comes too late for a first hop that goes out now. 0.0 or less: it is in time."""
        if progress.received_tokens > self._first_boundary(progress) + self.audio_format.lookahead_tokens:
            return 0.0
        if self._is_text_slow(progress) and progress.received_tokens >= self.blocks.speech_tokens + self.audio_format.lookahead_tokens:
            return 0.0
        if progress.next_block_s is None:
            return self.first_hop_patience_s
        audio_s = (self._first_boundary(progress) / progress.start_speed - self._withheld_tokens) / self.audio_format.tokens_per_second
        return progress.next_block_s + self.first_latency_s - audio_s

    def _is_text_slow(self, progress: HopProgress) -> bool:
        """Slower than speech."""
        block_s = self.blocks.speech_tokens / self.audio_format.tokens_per_second / progress.start_speed
        return progress.block_every_s is not None and progress.block_every_s > block_s

    def _may_be_cut(self, progress: HopProgress) -> bool:
        """Rule 5. Fewer tokens than the vocoder holds back would make no sound before the next hop."""
        return progress.is_resting and progress.sent_tokens > 0 and progress.pending_tokens >= self.min_hop_tokens

    def _urgent_s(self, progress: HopProgress) -> float:
        return self.urgent_buffer_s + progress.hop_latency_s
