"""The speech token service on a scripted engine, and once with real threads on the torch engine."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bistream.checkpoints.config import CheckpointConfig, LanguageModelConfig
from bistream.config import RuntimeConfig
from bistream.errors import (
    BistreamError,
    BusyError,
    CancelledError,
    CheckpointError,
    EngineError,
    InvalidInputError,
    SessionExistsError,
    SessionTimeoutError,
    ShuttingDownError,
    UnknownSessionError,
)
from bistream.families.registry import DEFAULT_FAMILY
from bistream.gpu.tier import Tier
from bistream.metrics.recorder import Recorder
from bistream.text.speakable import MAX_SPECIAL_RUN
from bistream.text.special_tokens import MARKS, SPECIAL_TOKENS
from bistream.text.text_in import WINDOW_CHARS, TextIn
from bistream.text.tokenizer import TextTokenizer
from bistream.text2token.engine import TokenSpace, TurnEnd, TurnLimits, TurnResult
from bistream.text2token.engine_settings import EngineSettings
from bistream.text2token.factory import LanguageModelParts, load_parts
from bistream.text2token.qwen2 import Qwen2Model
from bistream.text2token.service import LanguageModelStart, SpeechTokenService
from bistream.text2token.text_session import Message
from bistream.text2token.weights import build_weights
from bistream.types import FinishReason, GenerationOptions, SpeechTokens
from scripts._checkpoint_text import checkpoint_yaml, qwen2_config_json
from scripts._tokenizer_files import write_tokenizer_files
from tests.fakes import Script, ScriptedEngine, ScriptedSampler, ScriptedSequence, TurnView, counting_script
from tests.formats import MAX_SPEECH_TOKENS_PER_TEXT_TOKEN, SPEECH_TOKENS_PER_SECOND
from tests.unit.cuts import pieces_of
from tests.unit.text.pieces import tokens_of
from tests.unit.text2token import tiny

SIZES = replace(tiny.CONFIG, text_vocab_size=600)
SPACE = TokenSpace(SIZES.text_vocab_size, SIZES.speech_token_size)
CONFIG = RuntimeConfig(max_sessions=4, session_idle_timeout_s=30.0, max_text_chars=200, drain_timeout_s=0.0)
TEXT = "The weather was clear, so we walked along the river."


class Mailbox:
    """A session's sink: keeps the messages, those after the end separately."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.late: list[Message] = []
        self.ended = threading.Event()

    def __call__(self, message: Message) -> None:
        (self.late if self.ended.is_set() else self.messages).append(message)
        if isinstance(message, BistreamError) or message.is_final:
            self.ended.set()

    @property
    def tokens(self) -> list[int]:
        return [token for message in self.messages if isinstance(message, SpeechTokens) for token in message.token_ids]

    @property
    def error(self) -> BistreamError:
        last = self.messages[-1]
        assert isinstance(last, BistreamError), self.messages
        return last

    @property
    def reason(self) -> FinishReason | None:
        last = self.messages[-1]
        return last.finish_reason if isinstance(last, SpeechTokens) else None


def eos_in_final_phase(view: TurnView) -> Iterator[int]:
    """Counts, and proposes eos after 20 ids where that is allowed."""
    for number, token_id in enumerate(counting_script(view)):
        if number == 20:
            yield SPACE.eos
        yield token_id


def ends_in_time(view: TurnView) -> Iterator[int]:
    """Soon, but never before the shortest speech of the text."""
    for number, token_id in enumerate(counting_script(view)):
        if number >= max(5, view.limits.min_new_ids):
            yield SPACE.eos
        yield token_id


MARKS_ALONE = ("...", "\u3002\u3002", "!!!", " \n", "\U0001f600", "###", "<strong>.</strong>", "<>")


@dataclass
class Bench:
    """A service on a scripted engine with a clock that the test moves."""

    tokenizer: TextTokenizer
    script: Script = eos_in_final_phase
    pumped: bool = False
    config: RuntimeConfig = CONFIG
    max_total_ids: int = 1_000_000
    recorder: Recorder = field(default_factory=Recorder)

    def __post_init__(self) -> None:
        self.now = 0.0
        self.mailboxes: list[Mailbox] = []
        self.engine = ScriptedEngine(SPACE, self.script, pumped=self.pumped, max_total_ids=self.max_total_ids)
        self.parts = LanguageModelParts(self.tokenizer, SIZES, self.engine)
        self.service = SpeechTokenService(self.config, clock=lambda: self.now, parts=self.parts, run_timer=False, recorder=self.recorder)

    def start(self, text: str | bytes = "", is_end: bool = False, session_id: str = "a", **changes: Any) -> Mailbox:
        mailbox = Mailbox()
        self.mailboxes.append(mailbox)
        data = text.encode() if isinstance(text, str) else text
        self.service.start(replace(request(session_id, data, is_end), **changes), mailbox)
        return mailbox

    def append(self, text: str | bytes, is_end: bool = False, session_id: str = "a") -> None:
        self.service.append(session_id, text.encode() if isinstance(text, str) else text, is_end)

    def check_free(self) -> None:
        assert all(mailbox.late == [] for mailbox in self.mailboxes)
        assert self.service.num_sessions == 0
        assert self.engine.sessions == {}
        self.engine.check_integrity()


def request(session_id: str, text: bytes, is_end: bool) -> LanguageModelStart:
    return LanguageModelStart(session_id, text, is_end, "", np.zeros(0, np.int32), GenerationOptions())


def yielded(session: ScriptedSequence) -> list[int]:
    return [SPACE.speech_token(token_id) for token_id in session.decided if SPACE.is_speech(token_id)]


@pytest.fixture
def bench(tokenizer: TextTokenizer) -> Bench:
    return Bench(tokenizer)


@pytest.fixture
def pumped(tokenizer: TextTokenizer) -> Bench:
    return Bench(tokenizer, pumped=True)


class TestSpeaking:
    def test_a_start_with_the_whole_text_uses_the_unistream_layout(self, bench: Bench) -> None:
        prompt = np.array([5, 6], np.int32)
        mailbox = bench.start(TEXT, is_end=True, prompt_text="so", prompt_speech_tokens=prompt)
        (session,) = bench.engine.opened
        ((append_ids, limits),) = session.turns_started
        text = bench.tokenizer.encode(TEXT)
        speech = [SPACE.speech_offset + 5, SPACE.speech_offset + 6]
        assert append_ids == (SPACE.sos, *bench.tokenizer.encode("so"), *text, SPACE.task, *speech)
        assert (limits.min_new_ids, limits.max_new_ids) == (2 * len(text), 20 * len(text))
        assert mailbox.tokens == [SPACE.speech_token(token_id) for token_id in session.sequence[len(append_ids) :]]
        assert mailbox.reason is FinishReason.LENGTH  # the script proposes eos once, and too early
        bench.check_free()

    def test_pieces_use_the_bistream_layout(self, bench: Bench) -> None:
        mailbox = bench.start(TEXT)
        (session,) = bench.engine.opened
        assert mailbox.tokens, "speech before the end of the text"
        bench.append("", is_end=True)
        text = bench.tokenizer.encode(TEXT)
        assert session.turns_started[0][0] == (SPACE.sos, *text[:5])
        assert session.turns_started[-1][0] == (*text[len(text) // 5 * 5 :], SPACE.task)
        assert mailbox.reason is FinishReason.EOS
        bench.check_free()

    @given(cuts=st.lists(st.integers(0, 60), max_size=12), pumps=st.lists(st.integers(0, 30), min_size=12, max_size=12))
    def test_speech_depends_on_the_text_alone(self, tokenizer: TextTokenizer, cuts: list[int], pumps: list[int]) -> None:
        text = (TEXT + "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002").encode()
        whole = Bench(tokenizer)
        expected = whole.start(text)
        whole.append("", is_end=True)
        bench = Bench(tokenizer, pumped=True)
        mailbox = bench.start()
        pieces = pieces_of(text, cuts)
        for index, piece in enumerate(pieces):
            bench.append(piece, is_end=index == len(pieces) - 1)
            bench.engine.pump(pumps[index % len(pumps)])
        bench.engine.pump()
        assert mailbox.tokens == expected.tokens
        assert bench.engine.opened[0].sequence == whole.engine.opened[0].sequence
        assert mailbox.reason is expected.reason is FinishReason.EOS

    def test_a_session_that_waits_for_text_reports_it_after_its_last_token(self, pumped: Bench) -> None:
        mailbox = pumped.start("one two three four five six ")
        pumped.engine.pump()
        *spoken, last = mailbox.messages
        assert isinstance(last, SpeechTokens) and last.is_resting and last.token_ids == ()
        assert spoken and not any(isinstance(message, BistreamError) or message.is_resting for message in spoken)
        pumped.append("seven eight nine ten eleven twelve", is_end=True)
        pumped.engine.pump()
        assert [message for message in mailbox.messages if isinstance(message, SpeechTokens) and message.is_resting] == [last]

    def test_consumed_text_is_a_lower_bound_that_ends_with_the_whole_text(self, tokenizer: TextTokenizer) -> None:
        bench = Bench(tokenizer, pumped=True)
        mailbox = bench.start(TEXT, is_end=True)
        bench.engine.pump()
        messages = [message for message in mailbox.messages if isinstance(message, SpeechTokens)]
        consumed = [message.text_consumed for message in messages]
        text_in = TextIn(tokenizer)
        ends = [token.end_char for token in tokens_of(text_in, TEXT.encode()) + tokens_of(text_in, b"", is_end=True)]
        assert consumed == sorted(consumed)
        assert consumed[18:20] == [0, ends[0]]  # 20 speech tokens: at least one text token
        assert consumed[38:40] == [ends[0], ends[1]]
        assert consumed[-1] == len(TEXT)

    def test_sampling_defaults_to_the_checkpoint(self, bench: Bench) -> None:
        bench.start(TEXT, is_end=True, options=GenerationOptions(seed=7, temperature=0.0, top_p=0.5))
        spec = bench.engine.opened[0].spec
        assert (spec.seed, spec.temperature, spec.top_p, spec.top_k) == (7, 0.0, 0.5, SIZES.top_k)
        assert (spec.win_size, spec.tau_r) == (SIZES.win_size, SIZES.tau_r)

    def test_words_of_a_lexicon_are_respelled(self, tokenizer: TextTokenizer, tmp_path: Path) -> None:
        """Those of the server, and before them those of the request."""
        path = tmp_path / "lexicon.json"
        path.write_text('{"Weather": "whether", "river": "reever"}')
        respelling = Bench(tokenizer, config=replace(CONFIG, lexicon=str(path)))
        respelling.start("The Weather, a river.", is_end=True, options=GenerationOptions(lexicon='{"river": "stream"}'))
        plain = Bench(tokenizer)
        plain.start("The whether, a stream.", is_end=True)
        assert respelling.engine.opened[0].sequence == plain.engine.opened[0].sequence

    def test_a_session_may_be_ended_from_its_own_sink(self, tokenizer: TextTokenizer) -> None:
        bench = Bench(tokenizer)
        messages: list[Message] = []

        def sink(message: Message) -> None:
            messages.append(message)
            if len(messages) == 3:
                bench.service.cancel("a")

        bench.service.start(request("a", TEXT.encode(), False), sink)
        assert len(messages) == 4
        assert isinstance(messages[-1], CancelledError)
        bench.check_free()

    def test_a_session_can_be_started_again_from_its_end(self, tokenizer: TextTokenizer) -> None:
        bench = Bench(tokenizer, config=replace(CONFIG, max_sessions=1))
        second = Mailbox()

        def sink(message: Message) -> None:
            if isinstance(message, SpeechTokens) and message.is_final:
                bench.service.start(request("a", TEXT.encode(), True), second)

        bench.service.start(request("a", TEXT.encode(), True), sink)
        assert second.reason is FinishReason.LENGTH
        bench.check_free()

    @pytest.mark.parametrize("count", range(4))
    @pytest.mark.parametrize("is_end", [False, True])
    def test_a_sink_that_raises_ends_its_session_with_an_error(self, tokenizer: TextTokenizer, count: int, is_end: bool) -> None:
        """count: messages that it takes before; whatever it has not taken is not lost silently."""
        bench = Bench(tokenizer)
        messages: list[Message] = []

        def sink(message: Message) -> None:
            messages.append(message)
            if len(messages) > count:
                raise RuntimeError("broken")

        bench.service.start(request("a", TEXT.encode(), is_end), sink)
        assert len(messages) == count + 2 and isinstance(messages[-1], EngineError) and messages[-1].session_id == "a"
        assert str(messages[-1]) == "The server failed while it worked on this session; try again."
        bench.check_free()

    @pytest.mark.parametrize("place", ["layout", "turn", "tokenizer", "watch"])
    def test_a_fault_in_its_text_or_turns_ends_a_session_with_one_error(
        self, tokenizer: TextTokenizer, place: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench, sink = Bench(tokenizer), Mailbox()
        bench.service.start(request("a", TEXT.encode(), False), sink)
        faulty: dict[str, tuple[object, str]] = {
            "layout": (bench.service._sessions["a"]._layout, "push_text"),
            "turn": (bench.service._sessions["a"]._sequences, "begin"),
            "tokenizer": (bench.service._sessions["a"]._text, "read"),
            "watch": (bench.service._sessions["a"]._sequences, "yielded"),
        }

        def fail(*arguments: object) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr(*faulty[place], fail)
        with nullcontext() if place != "tokenizer" else pytest.raises(EngineError, match="worked on this session"):
            bench.service.append("a", TEXT.encode(), True)
        assert isinstance(sink.error, EngineError) and not sink.late
        bench.check_free()


class TestRefusals:
    """A start that raises leaves nothing behind, its sink untouched."""

    @pytest.mark.parametrize(
        ("changes", "word"),
        [
            ({"text": b"", "is_end": True}, "empty"),
            ({"text": b"x" * 201}, "longer than 200"),
            ({"text": b"\xff"}, "UTF-8"),
            ({"text": "\u4f60".encode()[:2], "is_end": True}, "UTF-8"),
            ({"prompt_text": "x" * 201}, "reference text"),
            ({"prompt_speech_tokens": np.array([SIZES.speech_token_size], np.int32)}, "prompt_speech_tokens"),
            ({"prompt_speech_tokens": np.array([-1], np.int32)}, "prompt_speech_tokens"),
            ({"prompt_speech_tokens": np.zeros((1, 2), np.int32)}, "prompt_speech_tokens"),
            ({"prompt_speech_tokens": np.zeros(5000, np.int32)}, "shorter reference"),
            ({"options": GenerationOptions(temperature=-0.1)}, "temperature"),
            ({"options": GenerationOptions(top_p=0.0)}, "top_p"),
            ({"options": GenerationOptions(lexicon="[]")}, "JSON object"),
            ({"options": GenerationOptions(lexicon='{"a": "b"}', text_normalization="raw")}, "leave lexicon out"),
        ],
    )
    def test_bad_input(self, bench: Bench, changes: dict[str, Any], word: str) -> None:
        mailbox = Mailbox()
        with pytest.raises(InvalidInputError, match=word):
            bench.service.start(replace(request("a", b"hello", False), **changes), mailbox)
        assert mailbox.messages == []
        bench.check_free()

    def test_a_live_session_cannot_be_started_again(self, bench: Bench) -> None:
        mailbox = bench.start("hello")
        with pytest.raises(SessionExistsError):
            bench.start("hello")
        bench.append(" world", is_end=True)  # the first one is untouched
        assert mailbox.reason is FinishReason.EOS

    def test_too_many_sessions(self, bench: Bench) -> None:
        for number in range(CONFIG.max_sessions):
            bench.start(session_id=str(number))
        with pytest.raises(BusyError):
            bench.start(session_id="one more")
        bench.service.cancel("0")
        bench.start(session_id="one more")

    def test_a_full_cache(self, tokenizer: TextTokenizer) -> None:
        bench = Bench(tokenizer, max_total_ids=3000)  # of which the longest utterance takes 2027
        bench.start(session_id="first")
        with pytest.raises(BusyError):
            bench.start(session_id="second")
        assert bench.service.num_sessions == 1
        bench.service.cancel("first")
        bench.start(session_id="second")

    def test_only_live_sessions_accept_text_or_cancel(self, bench: Bench) -> None:
        finished = bench.start(TEXT, is_end=True, session_id="finished")
        assert finished.ended.is_set()
        bench.start(session_id="cancelled")
        bench.service.cancel("cancelled")
        for session_id, error in (("unknown", UnknownSessionError), ("finished", UnknownSessionError), ("cancelled", CancelledError)):
            with pytest.raises(error):
                bench.append("hello", session_id=session_id)
            with pytest.raises(error):
                bench.service.cancel(session_id)

    def test_late_text_is_told_how_its_session_ended(self, pumped: Bench) -> None:
        pumped.start(TEXT, session_id="failed")
        pumped.engine.fail("Computing failed; try again.")
        with pytest.raises(EngineError, match="Computing failed"):
            pumped.append("more", session_id="failed")
        with pytest.raises(UnknownSessionError):  # nothing is left to cancel
            pumped.service.cancel("failed")

    def test_text_over_the_limit_is_refused_and_the_session_continues(self, tokenizer: TextTokenizer) -> None:
        bench = Bench(tokenizer, ends_in_time)
        mailbox = bench.start("\u4f60" * 150)
        with pytest.raises(InvalidInputError, match="longer than 200"):
            bench.append("\u4f60" * 51)
        bench.append("\u4f60" * 50, is_end=True)
        assert mailbox.reason is FinishReason.EOS

    def test_text_after_the_end_is_refused(self, pumped: Bench) -> None:
        pumped.start(TEXT, is_end=True)
        with pytest.raises(InvalidInputError, match="already ended"):
            pumped.append("more")
        pumped.append("")  # an empty piece, which renews the lease, is always accepted


class TestEnds:
    @pytest.mark.parametrize(("text", "is_end"), [(b"\xff", False), (b"\xe4\xbd", True)])
    def test_invalid_utf8_ends_the_session(self, bench: Bench, text: bytes, is_end: bool) -> None:
        mailbox = bench.start("hello")
        with pytest.raises(InvalidInputError, match="UTF-8"):
            bench.append(text, is_end)
        assert isinstance(mailbox.error, InvalidInputError)
        assert mailbox.error.session_id == "a"
        bench.check_free()

    def test_what_the_engine_delivers_after_a_cancel_is_dropped(self, pumped: Bench) -> None:
        """An engine may have results in flight when its session is closed."""
        mailbox = pumped.start(TEXT)
        running = pumped.engine.opened[0].running
        assert running is not None
        pumped.service.cancel("a")
        running.sink.on_ids([SPACE.speech_offset])
        running.sink.on_end(TurnResult(TurnEnd.LENGTH))
        assert mailbox.late == []
        assert [type(message) for message in mailbox.messages] == [CancelledError]

    def test_silence_is_a_timeout(self, bench: Bench) -> None:
        mailbox = bench.start("hello")
        bench.now = 29.0
        bench.append("")  # renews the lease
        bench.now = 58.0
        bench.service.expire()
        assert not mailbox.ended.is_set()
        bench.now = 59.0
        bench.service.expire()
        assert isinstance(mailbox.error, SessionTimeoutError)
        bench.check_free()

    def test_a_session_that_is_still_being_opened_cannot_expire(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.now = 1e6
        encode = TextIn.read

        def encode_slowly(text_in: TextIn, piece: bytes, is_end: bool) -> Any:
            bench.service.expire()  # the timer's thread may come at any time
            return encode(text_in, piece, is_end)

        monkeypatch.setattr(TextIn, "read", encode_slowly)
        mailbox = bench.start(TEXT, is_end=True)
        assert mailbox.reason is FinishReason.LENGTH and mailbox.tokens

    def test_the_time_without_words_counts_from_the_last_ones_and_not_while_the_engine_works(self, pumped: Bench) -> None:
        mailbox = pumped.start("hello")
        patience_s = 2 * CONFIG.session_idle_timeout_s

        def wait(seconds: float) -> None:
            for _ in range(int(seconds)):
                pumped.now += 1.0
                pumped.append("")
                pumped.service.expire()

        wait(patience_s - 1)
        pumped.append(" more")
        wait(patience_s - 1)
        pumped.append(TEXT)  # a turn begins, and the engine takes its time
        wait(2 * patience_s)
        assert not mailbox.ended.is_set()
        pumped.engine.pump()
        wait(patience_s - 1)
        assert not mailbox.ended.is_set()
        pumped.append("")
        pumped.now += 1.0 + len(mailbox.tokens) / SPEECH_TOKENS_PER_SECOND  # less than the lease
        pumped.service.expire()
        assert isinstance(mailbox.error, SessionTimeoutError)

    def test_a_session_whose_text_ended_needs_no_lease(self, pumped: Bench) -> None:
        mailbox = pumped.start(TEXT, is_end=True)
        pumped.now = 1000.0
        pumped.service.expire()
        pumped.engine.pump()
        assert mailbox.reason is FinishReason.LENGTH

    def test_the_timer_expires_sessions(self, tokenizer: TextTokenizer) -> None:
        parts = LanguageModelParts(tokenizer, SIZES, ScriptedEngine(SPACE, eos_in_final_phase))
        service = SpeechTokenService(replace(CONFIG, session_idle_timeout_s=0.01), parts=parts)
        mailbox = Mailbox()
        service.start(request("a", b"hello", False), mailbox)
        assert mailbox.ended.wait(timeout=240)
        assert isinstance(mailbox.error, SessionTimeoutError)
        service.close()

    def test_an_engine_failure_ends_every_session(self, pumped: Bench) -> None:
        talking = pumped.start(TEXT, session_id="talking")
        waiting = pumped.start("", session_id="waiting")
        pumped.engine.fail("Computing failed; try again.")
        assert isinstance(talking.error, EngineError)
        assert talking.error.sentence == "Computing failed; try again."
        assert not pumped.service.healthy
        pumped.service.expire()  # the timer: no session is left waiting for text
        assert isinstance(waiting.error, EngineError)
        pumped.check_free()

    def test_an_id_out_of_place_is_an_engine_error(self, tokenizer: TextTokenizer) -> None:
        class Unruly(ScriptedEngine):
            def _next_allowed(self, running: Any) -> int:
                return SPACE.specials[1]

        engine = Unruly(SPACE)
        service = SpeechTokenService(CONFIG, parts=LanguageModelParts(tokenizer, SIZES, engine), run_timer=False)
        mailbox = Mailbox()
        service.start(request("a", TEXT.encode(), False), mailbox)
        assert isinstance(mailbox.error, EngineError)
        assert (service.num_sessions, engine.sessions) == (0, {})

    @pytest.mark.parametrize("is_whole", [True, False])
    def test_a_text_beyond_the_positions_of_a_sequence_goes_on_in_others(self, tokenizer: TextTokenizer, is_whole: bool) -> None:
        bench = Bench(tokenizer, ends_in_time, config=replace(CONFIG, max_session_tokens=120))
        mailbox = bench.start(TEXT if is_whole else "", is_end=is_whole, options=GenerationOptions(seed=5))
        if not is_whole:
            for character in TEXT:
                bench.append(character)
            bench.append("", is_end=True)
        assert mailbox.reason is FinishReason.EOS
        assert isinstance(mailbox.messages[-1], SpeechTokens) and mailbox.messages[-1].text_consumed == len(TEXT)
        assert len(bench.engine.opened) > 1
        assert all(len(session.sequence) <= 120 for session in bench.engine.opened)
        assert [session.spec.seed for session in bench.engine.opened] == [5 + index for index in range(len(bench.engine.opened))]
        spoken = [token for session in bench.engine.opened for token in yielded(session)]
        assert mailbox.tokens == spoken
        bench.check_free()

    def test_drain_admits_no_sessions_and_ends_those_that_do_not_finish(self, pumped: Bench) -> None:
        mailbox = pumped.start(TEXT)
        pumped.service.drain(0.0)
        assert isinstance(mailbox.error, ShuttingDownError)
        with pytest.raises(ShuttingDownError):
            pumped.start(TEXT, session_id="b")
        pumped.check_free()

    def test_drain_waits_for_sessions_that_finish(self, pumped: Bench) -> None:
        mailbox = pumped.start(TEXT, is_end=True)
        drain = threading.Thread(target=pumped.service.drain, args=(60.0,))
        drain.start()
        pumped.engine.pump()
        drain.join(timeout=240)
        assert not drain.is_alive()
        assert mailbox.reason is FinishReason.LENGTH

    def test_close_ends_sessions_and_may_be_repeated(self, bench: Bench) -> None:
        mailbox = bench.start("hello")
        bench.service.close()
        bench.service.close()
        assert isinstance(mailbox.error, ShuttingDownError)
        assert bench.engine.closed


@given(seed=st.integers(0, 10**6))
def test_every_accepted_session_ends_exactly_once(tokenizer: TextTokenizer, seed: int) -> None:
    """Random starts, pieces, cancels, timeouts and steps."""
    rng = random.Random(seed)
    bench = Bench(tokenizer, pumped=True, max_total_ids=3 * CONFIG.max_session_tokens)
    accepted: list[Mailbox] = []

    def start() -> None:
        accepted.append(bench.start(rng.choice(["", "hello ", TEXT]), rng.random() < 0.3, rng.choice("abcdef")))

    def append() -> None:
        piece = rng.choice([b"", b" and so on", "\u4eca\u5929".encode(), b"\xe4", TEXT.encode(), b"x" * 300])
        bench.append(piece, rng.random() < 0.3, rng.choice("abcdef"))

    def expire() -> None:
        bench.now += rng.choice([1.0, 31.0])
        bench.service.expire()

    actions: list[Callable[[], object]] = [start, append, append, append, expire]
    actions += [lambda: bench.service.cancel(rng.choice("abcdef")), lambda: bench.engine.pump(rng.randrange(1, 20))]
    for _ in range(60):
        try:
            rng.choice(actions)()
        except (BusyError, CancelledError, InvalidInputError, SessionExistsError, SessionTimeoutError, UnknownSessionError):
            pass
        assert bench.service.num_sessions == len(bench.engine.sessions) == sum(not mailbox.ended.is_set() for mailbox in accepted)
    bench.service.close()
    assert all(mailbox.ended.is_set() for mailbox in accepted)
    bench.check_free()


@pytest.mark.parametrize("pieces", [[TEXT * 3], list(TEXT)], ids=["whole", "characters"])
@pytest.mark.parametrize("prompt_text", ["", "What the recording says, more or less."])
def test_messages_tell_the_character_that_the_engine_attends_to(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch, pieces: list[str], prompt_text: str
) -> None:
    texts: list[int] = []  # those of the sequence so far
    places: list[int] = []  # of each speech token: the text that it speaks; two of each, the prompt's first
    begin_turn = ScriptedSequence.turn

    def turn(sequence: ScriptedSequence, append_ids: Sequence[int], limits: TurnLimits, sink: Any) -> None:
        texts.extend(number for number in append_ids if number < SPACE.text_vocab_size)

        class Attending:
            def on_ids(self, ids: Sequence[int], texts_left: int | None = None) -> None:
                for number in ids:
                    places.append(min(len(places) // 2, len(texts) - 1))
                    sink.on_ids([number], len(texts) - 1 - places[-1])

            def on_end(self, result: TurnResult) -> None:
                sink.on_end(result)

        begin_turn(sequence, append_ids, limits, Attending())

    monkeypatch.setattr(ScriptedSequence, "turn", turn)
    bench = Bench(tokenizer, ends_in_time)
    mailbox = bench.start(pieces[0], len(pieces) == 1, prompt_text=prompt_text)
    for number, piece in enumerate(pieces[1:], 2):
        bench.append(piece, number == len(pieces))
    assert mailbox.reason is FinishReason.EOS
    reader = TextIn(tokenizer)
    ends = [token.end_char for token in tokens_of(reader, "".join(pieces).encode()) + tokens_of(reader, b"", is_end=True)]
    prompt = len(texts) - len(ends)
    assert (prompt > 0) == bool(prompt_text)
    count = 0
    for message in mailbox.messages:
        assert isinstance(message, SpeechTokens)
        count += len(message.token_ids)
        own = places[count - 1] - prompt if count else -1
        expected = None if own < 0 else -(-((ends[own - 1] if own else 0) + ends[own]) // 2)
        assert message.text_attended == expected
    assert count == len(places) > 2 * prompt and expected is not None


def test_threads_and_a_real_engine(tokenizer: TextTokenizer) -> None:
    """Sessions fed from separate threads speak what each speaks alone."""
    torch.set_num_threads(1)
    model = Qwen2Model(SIZES, build_weights(tiny.random_state(SIZES), SIZES, torch.device("cpu"), torch.float32))
    config = replace(CONFIG, max_sessions=8, drain_timeout_s=30.0, max_session_tokens=1024)
    texts = [TEXT[: 12 + 5 * index] for index in range(6)]

    def make_service() -> SpeechTokenService:
        engine = tiny.eager_engine(EngineSettings(max_sessions=8, max_rows=32, kv_cache_tokens=8192, max_sequence_ids=1024), model)
        return SpeechTokenService(config, parts=LanguageModelParts(tokenizer, SIZES, engine))

    def speak(service: SpeechTokenService, index: int, piece_size: int, mailbox: Mailbox) -> None:
        start = replace(request(str(index), b"", False), options=GenerationOptions(seed=index))
        service.start(start, mailbox)
        data = texts[index].encode()
        for at in range(0, len(data), piece_size):
            service.append(str(index), data[at : at + piece_size], at + piece_size >= len(data))

    service = make_service()
    together = [Mailbox() for _ in texts]
    threads = [threading.Thread(target=speak, args=(service, index, 3, mailbox)) for index, mailbox in enumerate(together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    assert all(mailbox.ended.wait(timeout=240) for mailbox in together)
    for index, mailbox in enumerate(together):
        alone = Mailbox()
        speak(service, index, 100, alone)
        assert alone.ended.wait(timeout=240)
        assert mailbox.tokens == alone.tokens
        assert mailbox.reason is alone.reason is not None
    assert service._parts.engine.stats().sessions == 0
    service.close()


@pytest.mark.parametrize("speech", ["varied", "silent", "repeated"])
def test_tokens_that_are_kept_back_leave_their_listener_waiting(tokenizer: TextTokenizer, speech: str) -> None:
    """What is thinned out, or held until it is no runaway, is neither audio nor an answer to who asked for tokens."""
    model = Qwen2Model(SIZES, build_weights(tiny.random_state(SIZES), SIZES, torch.device("cpu"), torch.float32))
    sampler = ScriptedSampler({"a": lambda row, decided: 3 if speech == "repeated" else len(decided) ** 3 % 59})
    sizes = EngineSettings(max_sessions=2, max_rows=64, kv_cache_tokens=4096, max_sequence_ids=1024)
    engine = tiny.eager_engine(sizes, model, sampler, threaded=False, clock=lambda: 100.0)
    family = replace(DEFAULT_FAMILY, silent_tokens=frozenset(range(SIZES.speech_token_size)) if speech == "silent" else frozenset())
    parts = LanguageModelParts(tokenizer, SIZES, engine, family=family)
    service = SpeechTokenService(replace(CONFIG, max_sessions=2), parts=parts, clock=lambda: 100.0, run_timer=False)
    mailbox = Mailbox()
    service.start(replace(request("a", TEXT.encode(), True)), mailbox)
    service.demand("a", 0.0, 100)
    for _ in range(40):
        assert engine.step()
    demand = engine._scheduler.sequences["a"].demand
    assert demand is not None and 1 < len(mailbox.tokens) <= 40
    assert (len(mailbox.tokens) == 40) == (speech == "varied")
    assert demand.lacks == 100 - len(mailbox.tokens) and demand.silent_at_s == pytest.approx(100.0 + len(mailbox.tokens) / 25)
    service.close()


class TestFactory:
    def test_a_tokenizer_with_more_ids_than_the_model_is_refused(self, tmp_path: Path) -> None:
        sizes = LanguageModelConfig(text_vocab_size=400)
        write_tokenizer_files(tmp_path, 500)
        (tmp_path / "cosyvoice2.yaml").write_text(checkpoint_yaml(CheckpointConfig(language_model=sizes)), encoding="utf-8")
        (tmp_path / "CosyVoice-BlankEN" / "config.json").write_text(qwen2_config_json(sizes), encoding="utf-8")
        with pytest.raises(CheckpointError, match="520 ids"):
            load_parts(RuntimeConfig(model_dir=str(tmp_path)))

    def test_the_tier_of_the_engine_is_handed_up(self, tiny_model_dir: Path) -> None:
        service = SpeechTokenService(RuntimeConfig(model_dir=str(tiny_model_dir), device="cpu", max_sessions=1, drain_timeout_s=0.0))
        assert [(choice.stage, choice.tier) for choice in service.tiers] == [("language model", Tier.PLAIN)]
        service.close()


class TestSpecialTokens:
    """A few between words are the model's business; a text of nothing else is bounded or refused, wherever it is cut."""

    @pytest.mark.parametrize("token", ["[laughter]", "<strong>"])  # of which one has a sound; others: tests/unit/text/test_speakable.py
    @pytest.mark.parametrize("size", [1, 10_000])
    def test_a_thousand_repetitions_are_refused(self, tokenizer: TextTokenizer, token: str, size: int) -> None:
        bench = Bench(tokenizer, config=replace(CONFIG, max_text_chars=100_000))
        text = token * 1400
        with pytest.raises(InvalidInputError, match="special tokens"):
            bench.start(text, is_end=True)
        assert bench.service.num_sessions == 0
        mailbox = bench.start("")
        with pytest.raises(InvalidInputError, match="special tokens"):
            for begin in range(0, len(text), size):
                bench.append(text[begin : begin + size])
        bench.append(" word", is_end=True)  # the session goes on without the piece that was too much
        assert mailbox.reason is not None
        assert len(mailbox.tokens) <= 20 * (MAX_SPECIAL_RUN + 10)

    @pytest.mark.parametrize("mode", ["off", "raw"])
    @pytest.mark.parametrize("text", [*sorted(MARKS - {"<|endofsystem|>"}), *MARKS_ALONE])
    def test_marks_alone_end_at_once_without_the_model(self, tokenizer: TextTokenizer, text: str, mode: str) -> None:
        bench = Bench(tokenizer, config=replace(CONFIG, text_normalization=mode))
        whole, pieces = bench.start(text, is_end=True), bench.start("")
        for character in text:
            bench.append(character)
        bench.append("", is_end=True)
        for mailbox in (whole, pieces):
            assert (mailbox.reason, mailbox.tokens) == (FinishReason.EOS, [])
        bench.check_free()

    def test_marks_before_the_first_word_wait_for_it(self, bench: Bench) -> None:
        mailbox = bench.start("")
        bench.append("\u00bf... (")
        assert all(session.turns_started == [] for session in bench.engine.opened)
        bench.append("word) and more words", is_end=True)
        assert mailbox.reason is not None and mailbox.tokens

    @pytest.mark.parametrize("token", [token for token in SPECIAL_TOKENS if token not in MARKS])
    def test_a_sound_alone_is_spoken_and_bounded(self, pumped: Bench, token: str) -> None:
        """Also by a model that never ends by itself."""
        mailbox = pumped.start(token, is_end=True)
        pumped.engine.pump()
        assert mailbox.reason is FinishReason.LENGTH
        assert 0 < len(mailbox.tokens) <= MAX_SPEECH_TOKENS_PER_TEXT_TOKEN

    def test_special_tokens_force_no_speech(self, tokenizer: TextTokenizer) -> None:
        """The model may end as soon as the words are spoken."""

        def silent(view: TurnView) -> Iterator[int]:
            yield from itertools.repeat(SPACE.eos)

        bench = Bench(tokenizer, script=silent)
        mailbox = bench.start("[breath]<strong>[laughter]</strong>", is_end=True)
        assert (mailbox.reason, mailbox.tokens) == (FinishReason.EOS, [])


def test_thousands_of_pieces_are_read_once(tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters given to the pre-tokenizer: some for each piece, never the text so far. What a session keeps is bounded by its text."""
    read: list[int] = []
    pre_tokenize = TextTokenizer.pre_tokenize

    def count(self: TextTokenizer, normalized: str) -> list[tuple[str, int]]:
        read.append(len(normalized))
        return pre_tokenize(self, normalized)

    monkeypatch.setattr(TextTokenizer, "pre_tokenize", count)
    bench = Bench(tokenizer, pumped=True, config=replace(CONFIG, max_text_chars=20_000))
    bench.start("")
    (session,) = bench.service._sessions.values()
    for character in "word by word " * 150:
        bench.append(character)
    for _ in range(500):
        bench.append("")
    assert max(read) <= 2 * WINDOW_CHARS and len(read) <= 3 * 13 * 150
    assert len(session._text.places._ends) <= session._text.num_chars
