"""What a session may speak depends on its text and its checkpoint, not on the memory of its sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bistream.config import RuntimeConfig
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.engine_settings import with_cache
from bistream.text2token.session_layout import PromptIds, SessionLayouts
from bistream.types import FinishReason
from tests.fakes import counting_script
from tests.formats import SPEECH_TOKENS_PER_SECOND
from tests.unit.text2token.test_service import CONFIG, Bench, ends_in_time

LONG_TEXT = "One more sentence, as before. " * 80
FULL_WIDTH = "".join(chr(0xFF21 + index % 26) for index in range(56))


def sequences(tokenizer: TextTokenizer, max_session_tokens: int, is_whole: bool) -> list[list[int]]:
    bench = Bench(tokenizer, ends_in_time, config=replace(CONFIG, max_session_tokens=max_session_tokens, max_text_chars=4000))
    mailbox = bench.start(LONG_TEXT if is_whole else "", is_end=is_whole)
    if not is_whole:
        bench.append(LONG_TEXT, is_end=True)
    assert mailbox.reason is FinishReason.EOS
    return [list(session.sequence) for session in bench.engine.opened]


@pytest.mark.parametrize("is_whole", [True, False])
def test_segments_are_those_of_the_checkpoint_whatever_the_memory(tokenizer: TextTokenizer, is_whole: bool) -> None:
    small, large = (sequences(tokenizer, size, is_whole) for size in (1800, 4000))
    assert small == large and len(small) > 3


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_model_that_never_ends_is_stopped_by_the_characters_of_its_text(tokenizer: TextTokenizer, is_whole: bool) -> None:
    bench = Bench(tokenizer, counting_script, config=replace(CONFIG, runaway_s=0.0))
    mailbox = bench.start(FULL_WIDTH if is_whole else "", is_end=is_whole)
    if not is_whole:
        for character in FULL_WIDTH:
            bench.append(character)
        bench.append("", is_end=True)
    assert mailbox.reason is FinishReason.LENGTH
    assert 20 * SPEECH_TOKENS_PER_SECOND <= len(mailbox.tokens) <= 40 * SPEECH_TOKENS_PER_SECOND


@given(num_speech=st.integers(0, 750), text_share=st.floats(0, 1), longest_s=st.sampled_from((8.0, 30.0, 50.0)))
def test_a_cache_of_no_given_size_has_room_for_sessions_with_any_reference(
    tokenizer: TextTokenizer, num_speech: int, text_share: float, longest_s: float
) -> None:
    parts = Bench(tokenizer).parts
    layouts = SessionLayouts(replace(parts, card=replace(parts.card, longest_utterance_s=longest_s)), 4096)
    prompt = PromptIds((), [1] * round(min(text_share * num_speech, 200)), [1] * num_speech)
    sized = with_cache(RuntimeConfig(max_sessions=1), longest_s, SPEECH_TOKENS_PER_SECOND)
    assert layouts.positions(prompt, 0, False) <= sized.kv_cache_tokens
