"""The service with batches that give way between steps: what runs when, what is freed when, and that nothing is lost. On fake networks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bistream.config import RuntimeConfig
from bistream.errors import BistreamError, BusyError, CancelledError, EngineError
from bistream.gpu.claims import HOPS, PATIENCE_S, TOKENS, Claim, GpuClaims, SharedGpu
from bistream.hops.batch_rules import StepDecision
from bistream.metrics.recorder import Recorder
from bistream.token2wav.service import Token2Wav
from tests.clock import ManualClock
from tests.recorded import sample
from tests.unit.token2wav.test_service import (
    TIMEOUT_S,
    FakeFlow,
    FakeState,
    FakeVocoder,
    Rig,
    audio,
    error,
    prompt,
    speech_stages,
)

CALM_S = 9.0  # of audio


def make_rig(recorder: Recorder | None = None, gpu_claims: GpuClaims | None = None, **settings_: Any) -> Rig:
    config = RuntimeConfig(drain_timeout_s=0.0, **settings_)
    flow, vocoder, clock = FakeFlow(steps=4), FakeVocoder(), ManualClock()
    renderer = speech_stages(flow, vocoder)
    service = Token2Wav(config, clock=clock, renderer=renderer, recorder=recorder, gpu_claims=gpu_claims)
    return Rig(service, flow, vocoder, clock)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = make_rig()
    yield made
    made.service.close()
    assert made.all_states_closed()
    assert made.service.live_sessions == 0


def test_a_calm_batch_gives_way_and_goes_on(rig: Rig) -> None:
    for name, token in (("calm", 1), ("other", 2), ("pressed", 3)):
        audio(rig.hop(name, token, start=True))
    with rig.flow.hold() as wait_until_inside:
        calm = rig.hop("calm", 11, playback_buffer_s=CALM_S)
        wait_until_inside()  # after its first step
        pending = [rig.hop("new", 12, start=True), rig.hop("pressed", 13, playback_buffer_s=0.1)]
        pending.append(rig.hop("other", 14, playback_buffer_s=CALM_S))
    assert [audio(future) for future in (calm, *pending)] == [[11], [12], [13], [14]]
    assert rig.flow.begun[-3:] == [[(11,)], [(12,), (13,)], [(14,)]]
    assert rig.flow.log[-4:] == [12, 13, 11, 14]  # in the order in which they were done


def test_a_session_that_is_cancelled_in_a_batch_in_progress_is_freed_after_it(rig: Rig) -> None:
    """Its memory must not go to others before. Its id can be used at once, by a session that does not wait for the batch."""
    audio(rig.hop("calm", 1, start=True))
    with rig.flow.hold() as wait_until_inside:
        calm = rig.hop("calm", 11, playback_buffer_s=CALM_S)
        wait_until_inside()
        rig.service.cancel("calm")
        assert isinstance(error(calm), CancelledError)
        again = rig.hop("calm", 12, start=True)
    assert audio(again) == [12]
    assert rig.flow.states[0].freed.wait(TIMEOUT_S)
    assert rig.flow.log == [1, 12, 11], "the fake flow asserts that no state is closed while its hop is computed"


def test_a_start_without_room_waits_for_the_batch_in_progress(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    audio(rig.hop("calm", 1, start=True))
    open_, refusals = rig.flow.open, []

    def open_after(voice: Any, expected_speech_s: float | None = None) -> FakeState:
        if (11,) not in [tokens for batch in rig.flow.batches for tokens in batch]:
            refusals.append(1)
            raise BusyError("The pages are in use.")
        return open_(voice)

    monkeypatch.setattr(rig.flow, "open", open_after)
    with rig.flow.hold() as wait_until_inside:
        calm = rig.hop("calm", 11, playback_buffer_s=CALM_S)
        wait_until_inside()
        new = rig.hop("new", 12, start=True)
    assert (audio(calm), audio(new)) == ([11], [12])
    assert len(refusals) == 1
    monkeypatch.setattr(rig.flow, "refuses_to_open", True)
    monkeypatch.setattr(rig.flow, "open", open_)
    assert isinstance(error(rig.hop("late", 13, start=True)), BusyError), "nothing is in progress that could make room"


OPERATIONS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["start", "calm", "pressed", "finalize", "cancel", "offline"]), st.booleans()),
    max_size=30,
)


@settings(max_examples=12)
@given(OPERATIONS)
def test_whatever_happens_between_the_steps_every_future_is_answered_once(operations: list[tuple[str, str, bool]]) -> None:
    """Operations come while the worker is held inside a step, or not."""
    rig = make_rig(max_sessions=4)
    futures: list[Future[Any]] = []
    for number, (name, operation, is_held) in enumerate(operations):
        token = 100 + number
        with rig.flow.hold() if is_held else nullcontext():
            if operation == "cancel":
                rig.service.cancel(name)
            elif operation == "offline":
                futures.append(rig.service.synthesize([token], prompt()))
            else:
                buffer_s = CALM_S if operation == "calm" else 0.0
                first = operation == "start"
                futures.append(rig.hop(name, token, finalize=operation == "finalize", start=first, playback_buffer_s=buffer_s))
    for future in futures:
        found = future.exception(TIMEOUT_S)
        assert found is None or isinstance(found, BistreamError)
    rig.service.close()
    assert rig.all_states_closed()
    done = [token for batch in rig.flow.batches for tokens in batch for token in tokens]
    assert len(done) == len(set(done))


def test_the_waveform_is_that_of_batches_that_nobody_suspends() -> None:
    """The fake renders tokens by their numbers, so a mix-up of rows would be heard."""
    found = []
    for is_suspended in (False, True):
        rig = make_rig()
        for name in "abcd":
            audio(rig.hop(name, 1, start=True))
        with rig.flow.hold() if is_suspended else nullcontext() as wait_until_inside:
            pending = [rig.hop("a", *range(10, 20), playback_buffer_s=CALM_S)]
            if wait_until_inside is not None:
                wait_until_inside()
            for index, name in enumerate("bcd", 2):
                if not is_suspended:
                    pending[-1].result(TIMEOUT_S)
                pending.append(rig.hop(name, *range(10 * index, 10 * index + 5), playback_buffer_s=index % 2 * CALM_S))
        found.append([future.result(TIMEOUT_S) for future in pending])
        rig.service.close()
    assert all(np.array_equal(left, right) for left, right in zip(*found, strict=True))


def share(directory: Path) -> GpuClaims:
    return SharedGpu(Claim(directory, 0, HOPS), Claim(directory, 0, TOKENS), PATIENCE_S[HOPS])


def test_calm_hops_wait_for_the_language_model_and_urgent_ones_do_not(tmp_path: Path) -> None:
    """Until the claim ends: the clock stands still, so nobody's patience does."""
    recorder, tokens = Recorder(), Claim(tmp_path, 0, TOKENS)
    made = make_rig(recorder=recorder, gpu_claims=share(tmp_path))
    for name, token in (("calm", 1), ("pressed", 2)):
        audio(made.hop(name, token, start=True))
    tokens.claim()
    calm = made.hop("calm", 11, playback_buffer_s=CALM_S)
    assert audio(made.hop("new", 12, start=True)) == [12] and not calm.done()
    assert audio(made.hop("pressed", 13, playback_buffer_s=0.1)) == [13] and not calm.done()
    tokens.release()
    assert audio(calm) == [11]
    with made.flow.hold() as wait_until_inside:
        calm = made.hop("calm", 14, playback_buffer_s=CALM_S)
        wait_until_inside()  # after its first step
        tokens.claim()
    assert audio(made.hop("pressed", 15, playback_buffer_s=0.1)) == [15] and not calm.done()
    tokens.release()
    assert audio(calm) == [14]
    made.service.close()
    assert made.all_states_closed()
    assert sample(recorder, "hop_step_decisions_total", decision=StepDecision.LETS_PASS.value) >= 1


def test_no_hop_waits_for_the_language_model_longer_than_a_moment(tmp_path: Path) -> None:
    """Although its claims never end."""
    tokens = Claim(tmp_path, 0, TOKENS)
    made = make_rig(gpu_claims=share(tmp_path))
    audio(made.hop("calm", 1, start=True))
    tokens.claim()
    calm = made.hop("calm", 2, playback_buffer_s=CALM_S)
    while not calm.done():
        tokens.claim()  # anew, as with every step: a claim that never changes would count for nothing
        made.clock.now += PATIENCE_S[HOPS] / 4
    assert audio(calm) == [2]
    made.service.close()


def test_the_gpu_is_claimed_while_hops_are_urgent_and_no_longer(tmp_path: Path) -> None:
    seen = Claim(tmp_path, 0, HOPS)
    made = make_rig(gpu_claims=share(tmp_path))
    audio(made.hop("calm", 1, start=True))
    with made.flow.hold() as wait_until_inside:
        first = made.hop("new", 2, start=True)
        wait_until_inside()
        assert seen.held is not None, "a first hop is computed"
        calm = made.hop("calm", 3, playback_buffer_s=CALM_S)
        assert seen.held is not None, "a hop that is not urgent does not end that"
    assert [audio(first), audio(calm)] == [[2], [3]]
    with made.flow.hold() as wait_until_inside:
        calm = made.hop("calm", 4, playback_buffer_s=CALM_S)
        wait_until_inside()
        assert seen.held is None
        pressed = made.hop("new", 5, playback_buffer_s=0.0)
        assert seen.held is not None, "it waits"
    assert [audio(calm), audio(pressed)] == [[4], [5]]
    made.service.close()


def test_a_cancelled_first_hop_uses_up_no_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bistream.hops.batch_rules.MAX_SUSPENSIONS", 1)
    rig = make_rig()
    audio(rig.hop("calm", 1, start=True))
    with rig.flow.hold() as wait_until_inside:
        calm = rig.hop("calm", 11, playback_buffer_s=CALM_S)
        wait_until_inside()
        rig.hop("gone", 12, start=True)
        rig.service.cancel("gone")
        first_step = rig.flow._gate
        assert first_step is not None
        with rig.flow.hold() as wait_until_inside_again:
            first_step.set()
            wait_until_inside_again()
            new = rig.hop("new", 13, start=True)
    assert audio(new) == [13] and audio(calm) == [11]
    assert rig.flow.log[-2:] == [13, 11]
    rig.service.close()


def test_an_error_of_the_device_between_two_steps_is_the_sessions(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was launched fails later, where the host waits for it."""

    class Stream:
        def synchronize(self) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    audio(rig.hop("calm", 1, start=True))
    monkeypatch.setattr(rig.flow, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: Stream())
    assert isinstance(error(rig.hop("calm", 11, playback_buffer_s=CALM_S)), EngineError)
    monkeypatch.setattr(rig.flow, "device", torch.device("cpu"))
    assert audio(rig.hop("next", 2, start=True)) == [2]


def test_closing_frees_the_batch_in_progress(rig: Rig) -> None:
    """It gives way to a hop that is cancelled while the service closes."""
    audio(rig.hop("calm", 1, start=True))
    with rig.flow.hold() as wait_until_inside:
        rig.hop("calm", 11, playback_buffer_s=CALM_S)
        wait_until_inside()
        rig.clock.now += 0.1  # earns a step of the background
        rig.service.synthesize([50, 51], prompt())
        rig.hop("new", 12, start=True)
        rig.service.cancel("new")
        first_step = rig.flow._gate
        assert first_step is not None
        with rig.flow.hold() as wait_until_inside_the_background:
            first_step.set()
            wait_until_inside_the_background()
            closing = threading.Thread(target=rig.service.close)
            closing.start()
    closing.join(TIMEOUT_S)
    assert not closing.is_alive() and rig.service._schedule.started is None
