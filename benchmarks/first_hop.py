"""How soon a session whose text comes in pieces can be heard, and what gaps that costs. No GPU, no network: a simulation.

    python benchmarks/first_hop.py [--words 4,6,8,10,12,16,24] [--sessions 60]

The hop policy is the real one; text comes word by word at a pace that varies by 30 % from word to word, speech in blocks of 15 tokens
for 5 text tokens, a hop takes ``--hop`` seconds, a token of the language model 1.1 ms. The voice's recording has between 0 and 14 speech
tokens in the first block. ``two blocks``: 18 tokens first, then what there is when audio runs short; ``one block``: the first block at
once; ``in sight`` (the product): where the next one is expected in time. Prints, over sessions of 15 s of text: first audio in ms after
the first word, also of those voices whose first block is long enough to be heard alone, the share of sessions with a gap, the gaps' mean
sum, the share of sessions in which a pause of the text moved the end of a hop, and by how much the latest session is later than with two
blocks.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import table
from bistream.orchestration.hop_policy import HopPolicy, HopProgress
from bistream.orchestration.text_pace import TextPace
from bistream.rates import LOOKAHEAD_TOKENS, SPEECH_BLOCK_TOKENS, SPEECH_TOKENS_PER_SECOND, TEXT_BLOCK_TOKENS

TOKENS_PER_WORD, CHARACTERS_PER_TOKEN = 1.3, 4.3
LM_TOKEN_S = 1.1e-3
STEP_S = 0.005
SILENT_TOKENS = LOOKAHEAD_TOKENS + 4  # the vocoder holds back eight mel frames
SECONDS = 15.0


@dataclass
class Text:
    """At each time: text tokens that are certain, and when blocks of speech are there."""

    prompt_tokens: int
    came_s: list[float]  # of each text token

    @property
    def first_block(self) -> int:
        return SPEECH_BLOCK_TOKENS - self.prompt_tokens % SPEECH_BLOCK_TOKENS

    def received(self, now_s: float) -> int:
        """Speech tokens at a time."""
        tokens, free_at_s = 0, 0.0
        for block in range(len(self.came_s) // TEXT_BLOCK_TOKENS):
            began_s = max(free_at_s, self.came_s[(block + 1) * TEXT_BLOCK_TOKENS - 1])
            size = SPEECH_BLOCK_TOKENS if block else self.first_block
            free_at_s = began_s + size * LM_TOKEN_S
            if now_s < began_s:
                break
            tokens += min(size, int((now_s - began_s) / LM_TOKEN_S))
        return tokens

    @property
    def blocks(self) -> int:
        return len(self.came_s) // TEXT_BLOCK_TOKENS


def text_of(words_per_s: float, chance: random.Random) -> Text:
    """The first word is there at 0 s; a token is certain with the word after it."""
    now_s, came = 0.0, list[float]()
    carry = 0.0
    while now_s < SECONDS:
        now_s += chance.uniform(0.7, 1.3) / words_per_s
        carry += TOKENS_PER_WORD
        came += [now_s] * int(carry)
        carry -= int(carry)
    return Text(chance.randint(75, 89), came)


Rule = Callable[[HopProgress], int | None]


def before(progress: HopProgress) -> int | None:
    """18 tokens first; then to the boundary at least ten tokens away, or what there is when audio runs short."""
    if progress.sent_tokens == 0:
        return 18 if progress.pending_tokens >= 18 else None
    position = progress.prompt_tokens + progress.spoken_tokens
    target = -(-(position + 10) // 25) * 25 - progress.prompt_tokens + LOOKAHEAD_TOKENS - progress.sent_tokens
    if progress.pending_tokens >= target:
        return target
    is_urgent = progress.playback_buffer_s <= 0.25 + progress.hop_latency_s
    return progress.pending_tokens if is_urgent and progress.pending_tokens >= 5 else None


RULES: dict[str, Rule] = {
    "two blocks": before,
    "one block": lambda progress: HopPolicy().next_hop(replace(progress, next_block_s=0.0)),
    "in sight": HopPolicy().next_hop,
}


def listen(text: Text, rule: Rule, hop_s: float) -> tuple[float, float, int]:
    """First audio, sum of the gaps in seconds, and hops cut by a pause, until the last block is spoken."""
    policy, pace, total = HopPolicy(), TextPace(), text.first_block + SPEECH_BLOCK_TOKENS * (text.blocks - 1)
    sent = audible = cuts = 0
    first_s = plays_until_s = ready_s = None
    silent_s, busy_until_s, under_way, now_s = 0.0, 0.0, 0, 0.0
    while total - sent >= 25 or under_way:
        now_s += STEP_S
        tokens = sum(came_s <= now_s for came_s in text.came_s)
        pace.came(int(CHARACTERS_PER_TOKEN * (tokens + TOKENS_PER_WORD)), now_s)
        if under_way and now_s >= busy_until_s:
            sent, under_way = sent + under_way, 0
            seconds, audible = (max(0, sent - SILENT_TOKENS) - audible) / SPEECH_TOKENS_PER_SECOND, max(0, sent - SILENT_TOKENS)
            if plays_until_s is None:
                first_s = plays_until_s = now_s
            silent_s += max(0.0, now_s - plays_until_s)
            plays_until_s = max(now_s, plays_until_s) + seconds
        if under_way:
            continue
        received = text.received(now_s)
        fed = tokens // TEXT_BLOCK_TOKENS * TEXT_BLOCK_TOKENS
        progress = HopProgress(
            text.prompt_tokens,
            received,
            sent,
            False,
            max(0.0, plays_until_s - now_s) if plays_until_s is not None else 0.0,
            hop_s if sent else 0.0,
            is_whole=False,
            is_resting=received == text.first_block + SPEECH_BLOCK_TOKENS * (fed // TEXT_BLOCK_TOKENS - 1),
        )
        if sent == 0 and policy.has_first_tokens(progress):
            ready_s = now_s if ready_s is None else ready_s
            of_text = int(fed * CHARACTERS_PER_TOKEN), fed, now_s
            expected_s, every_s = pace.next_block_s(*of_text), pace.block_every_s(*of_text)
            progress = replace(progress, waited_s=now_s - ready_s, next_block_s=expected_s, block_every_s=every_s)
        count = rule(progress)
        if count is not None:
            cuts += bool(sent) and count < policy.wanted_tokens(replace(progress, received_tokens=sent))
            under_way, busy_until_s = count, now_s + hop_s
    assert first_s is not None
    return first_s, silent_s, cuts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", default="4,6,8,10,12,16,24", help="of the text, per second")
    parser.add_argument("--sessions", type=int, default=60)
    parser.add_argument("--hop", type=float, default=0.04, help="seconds from sending tokens to having audio")
    options = parser.parse_args(arguments)
    rows, lines, usual = [], [], np.zeros(0)
    for words_per_s in map(float, options.words.split(",")):
        for name, rule in RULES.items():
            chance = random.Random(1)
            texts = [text_of(words_per_s, chance) for _ in range(options.sessions)]
            heard = np.array([listen(text, rule, options.hop) for text in texts])
            usual = heard if rule is before else usual
            short = np.array([text.first_block >= 12 for text in texts])
            rows.append(
                {
                    "words_per_s": words_per_s,
                    "rule": name,
                    "first_ms": float(np.median(heard[:, 0]) * 1e3),
                    "first_ms_of_a_block": float(np.median(heard[short, 0]) * 1e3),
                    "with_gap": float((heard[:, 1] > 0.02).mean()),
                    "gap_ms": float(heard[:, 1].mean() * 1e3),
                    "with_cut": float((heard[:, 2] > 0).mean()),
                    "latest_ms": float((heard[:, 0] - usual[:, 0]).max() * 1e3),
                }
            )
            lines.append(tuple(f"{value:.2f}" if isinstance(value, float) else str(value) for value in rows[-1].values()))
    table([tuple(rows[0]), *lines])
    print(json.dumps({"hop_s": options.hop, "sessions": options.sessions, "rows": rows}))


if __name__ == "__main__":
    main()
