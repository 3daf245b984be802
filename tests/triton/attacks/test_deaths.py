"""SIGKILL of each model process under load: what its callers hear, that new sessions work afterwards, that nothing is left behind."""

from __future__ import annotations

import logging
import os
import signal
import time

import pytest

from tests.triton.conftest import START_TIMEOUT_S
from tests.triton.keeper import shared_memory_of
from tests.triton.processes import described, named
from tests.triton.reliability import Attack
from tests.triton.served import CALLERS, Served, end

logger = logging.getLogger(__name__)

TOLD_S = 6.0  # measured: 0.1 to 0.5; decides where the times are reported
# One model of each kind with every change; the others die the same way.
FRONT_ENDS = ["audio_tokenizer", pytest.param("speaker_embedding", marks=pytest.mark.slow)]
STAGES = ["token2wav", pytest.param("llm_bistream", marks=pytest.mark.slow)]
FRONT_MODELS = ["cosyvoice2_bistream", pytest.param("cosyvoice2", marks=pytest.mark.slow)]


@pytest.mark.attack(
    "SIGKILL of `{model}` while sessions speak", must="every session has all its audio; new ones soon do; the model alone is replaced"
)
@pytest.mark.parametrize("model", FRONT_ENDS)
def test_the_death_of_a_front_end_costs_no_session(busy: Served, model: str, attack: Attack) -> None:
    before = named(busy.keeper.pid)
    callers, server, dead = busy.callers(), busy.server, busy.process(model)
    os.kill(dead, signal.SIGKILL)
    killed_at = time.monotonic()
    outcomes: list[str] = []
    while not outcomes or outcomes[-1] != "audio":
        assert time.monotonic() < killed_at + START_TIMEOUT_S, outcomes
        outcomes.append(busy.new_session())
    logger.info("%s: new sessions after its death: %s, %.1f s", model, outcomes, time.monotonic() - killed_at)
    assert set(outcomes[:-1]) <= {"ENGINE_ERROR"}
    for caller in callers:
        caller.say("And these are the last words.")
    heard = end(callers)
    attack.got(heard)
    attack.processes = described(before, named(busy.keeper.pid))
    assert heard == ["audio"] * CALLERS
    assert busy.server == server and busy.process(model) != dead


@pytest.mark.attack(
    "SIGKILL of `{model}` while sessions speak",
    must="one `ENGINE_ERROR` for each session; new ones have their audio after a restart; no shared memory is left",
)
@pytest.mark.parametrize("model", STAGES)
def test_the_death_of_a_stage_ends_each_of_its_sessions_with_one_error(busy: Served, model: str, attack: Attack) -> None:
    old = set(shared_memory_of(busy.keeper.pid))
    told_s = kill(busy, model, attack)
    assert told_s < TOLD_S or not attack.is_reported
    assert not old & set(shared_memory_of(busy.keeper.pid)), "shared memory of the dead server"


@pytest.mark.attack(
    "SIGKILL of `{model}` while sessions speak",
    must="one `ENGINE_ERROR` for each session of both front models; new ones have their audio after a restart",
)
@pytest.mark.parametrize("model", FRONT_MODELS)
def test_the_death_of_a_front_model_restarts_the_server(busy: Served, model: str, attack: Attack) -> None:
    """Sessions of the dead front model end with their stream, which the gate turns into one error; those of the other one are told."""
    kill(busy, model, attack)


def kill(busy: Served, model: str, attack: Attack) -> float:
    """Every session gets one error, and the server is restarted. How long it took until all were told."""
    before = named(busy.keeper.pid)
    callers, server = busy.callers(), busy.server
    os.kill(busy.process(model), signal.SIGKILL)
    killed_at = time.monotonic()
    heard = end(callers)
    attack.got(heard)
    assert heard == ["ENGINE_ERROR"] * CALLERS
    told_s = max(caller.ended_at for caller in callers) - killed_at
    busy.wait_restarted(server)
    logger.info("%s: told after %.2f s, serving again after %.1f s", model, told_s, time.monotonic() - killed_at)
    assert busy.new_session() == "audio"
    attack.processes = described(before, named(busy.keeper.pid))
    attack.remarks.append(f"told after {told_s:.1f} s")
    return told_s
