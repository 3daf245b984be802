"""One reply of the fleet simulation: its hops are those of the server's hop policy, its listener hears what has arrived."""

from __future__ import annotations

from dataclasses import dataclass

from bistream.config import RuntimeConfig
from bistream.families.cosyvoice2 import AUDIO_FORMAT
from bistream.families.registry import DEFAULT_FAMILY
from bistream.hops.policy import HopPolicy, HopProgress
from bistream.sessions.load import Need, promised_rate

TOKEN_S = 1 / AUDIO_FORMAT.tokens_per_second
WITHHELD_TOKENS = (
    AUDIO_FORMAT.lookahead_tokens + AUDIO_FORMAT.vocoder_overlap_frames // AUDIO_FORMAT.mel_frames_per_token
)  # of a hop, heard with the next one
VOICE_TOKENS = 117  # of assets/reference.wav, with which the server was measured
FIRST_TOKENS = 18  # of the first hop of a whole text, for which the stage "tokens" was measured
POLICY = HopPolicy(
    DEFAULT_FAMILY.audio_format,
    DEFAULT_FAMILY.blocks,
    FIRST_TOKENS - AUDIO_FORMAT.lookahead_tokens,
    max_chunks=RuntimeConfig().max_hop_chunks,
)


@dataclass(eq=False, slots=True)
class Session:
    """asked_at_s: when its caller first wanted the reply, refusals before included. total: speech tokens.

    is_whole: all text was in the start. begun_at_s: the orchestrator has begun it. first_tokens_s: from then to ``FIRST_TOKENS`` tokens.
    tokens_at_s: when the language model had made those of the last hop.
    has_hop: token2wav has a hop of it, waiting or in a batch.
    """

    caller: int
    replica: int
    asked_at_s: float
    started_at_s: float
    total: int
    is_whole: bool = True
    begun_at_s: float = 0.0
    first_tokens_s: float = 0.0
    tokens_at_s: float = 0.0
    sent: int = 0
    has_hop: bool = False
    first_audio_at_s: float | None = None
    audio_ends_at_s: float = 0.0
    silent_s: float = 0.0

    def next_tokens(self) -> int:
        """Of the next hop, lookahead included. The policy is asked as if all tokens were there; ``ready_at_s`` says when they are."""
        count = POLICY.next_hop(HopProgress(VOICE_TOKENS, self.total, self.sent, has_ended=True, is_whole=self.is_whole))
        assert count is not None, "nothing is waited for when all tokens are there"
        return count

    def ready_at_s(self, tokens: int, token_s: float, speech_per_text_s: float) -> float:
        """When text and language model suffice for that many more tokens; asked once for each hop.

        token_s: of later hops. speech_per_text_s: 0: all text is there at the start.
        """
        text_s = (self.sent + tokens) * TOKEN_S / speech_per_text_s if speech_per_text_s else 0.0
        made_at_s = self.tokens_at_s + tokens * token_s
        if self.sent == 0:
            made_at_s = self.begun_at_s + self.first_tokens_s * tokens / FIRST_TOKENS
        self.tokens_at_s = max(made_at_s, self.started_at_s + text_s)
        return self.tokens_at_s

    def computed_chunks(self, tokens: int) -> float:
        """Chunks of 25 tokens that a later hop computes: from the last boundary at which the flow has stored its state."""
        begin = (VOICE_TOKENS + self.sent - AUDIO_FORMAT.lookahead_tokens) // AUDIO_FORMAT.chunk_tokens * AUDIO_FORMAT.chunk_tokens
        return (VOICE_TOKENS + self._spoken(self.sent + tokens) - begin) / AUDIO_FORMAT.chunk_tokens

    def receive(self, tokens: int, now_s: float) -> None:
        """The audio of a hop has arrived."""
        before = self._audible(self.sent)
        self.sent += tokens
        self.has_hop = False
        if self.first_audio_at_s is None:
            self.first_audio_at_s = self.audio_ends_at_s = now_s
        self.silent_s += max(0.0, now_s - self.audio_ends_at_s)
        self.audio_ends_at_s = max(now_s, self.audio_ends_at_s) + (self._audible(self.sent) - before) * TOKEN_S

    def need(self, now_s: float) -> Need:
        """For admission, as ``bistream/sessions/load.py`` counts a session whose speech has not all been made."""
        is_late = self.has_hop and self.sent > 0 and self.audio_ends_at_s <= now_s
        return Need(promised_rate(None, None if self.sent else now_s - self.begun_at_s), is_late=is_late)

    def _spoken(self, sent: int) -> int:
        return sent if sent == self.total else max(0, sent - AUDIO_FORMAT.lookahead_tokens)

    def _audible(self, sent: int) -> int:
        return sent if sent == self.total else max(0, sent - WITHHELD_TOKENS)
