"""Clients that never read: memory stays bounded, their sessions end or wait, and others go on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from bistream.contract.codec import scalar_array, text_array
from tests.formats import SAMPLE_RATE
from tests.triton.attacks.conftest import SHORT_S, UNREAD_S
from tests.triton.attacks.exchange import SERVICE, coded
from tests.triton.attacks.gauges import wait_free
from tests.triton.attacks.sizes import Sizes
from tests.triton.processes import Usage, described, named, replaced, usages
from tests.triton.reliability import Attack
from tests.triton.served import END_S, Served
from tests.triton.test_gate import raw_request
from tests.triton.test_sessions import MODEL

CLIENTS = 4
TEXT = "A long text that its client never listens to, however long it is. " * 6
SPEED = 0.5  # makes twice as much audio of it
AUDIO_MB = 60 * SAMPLE_RATE * 4 / 2**20  # the models run 60 s ahead of a listener, and then as fast as one listens
# What may be held for each client: its audio in the gate or in Triton, and as much again in copies and pages of allocators.
AUDIO_PROCESSES = ("gate", "tritonserver", MODEL)
GROWTH_MB = 3 * CLIENTS * AUDIO_MB
OPTIONS = (
    ("grpc.http2.lookahead_bytes", 0),  # the library accepts no more than a window of 64 KiB by itself
    ("grpc.http2.bdp_probe", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, whose window no other client fills
)


class Deaf:
    """A client that sends its whole text and takes nothing until ``hear``."""

    def __init__(self, url: str, voice: dict[str, Any]) -> None:
        self._channel = grpc.insecure_channel(url, OPTIONS)
        arrays = {"target_text": text_array(TEXT), "session_id": text_array(uuid.uuid4().hex), "reference_wav": voice["reference_wav"]}
        arrays |= {"reference_text": text_array(voice["reference_text"]), "speed": scalar_array(SPEED, np.float32)}
        made = raw_request(MODEL, **arrays, is_end=scalar_array(True, np.bool_))
        self._call = self._channel.stream_stream(f"{SERVICE}/ModelStreamInfer")(self._requests(made), timeout=2 * END_S)
        self.samples = 0

    def _requests(self, made: Any) -> Iterator[bytes]:
        yield made.SerializeToString()

    def hear(self) -> str:
        """What it hears when it reads at last."""
        codes = []
        try:
            for data in self._call:
                taken = service_pb2.ModelStreamInferResponse.FromString(data)
                if taken.error_message:
                    codes.append(coded(taken.error_message))
                elif taken.infer_response.raw_output_contents:
                    self.samples += len(taken.infer_response.raw_output_contents[0]) // 4
        except grpc.RpcError as error:
            codes.append(error.code().name)
        return " ".join(codes) or "audio"

    def close(self) -> None:
        self._call.cancel()
        self._channel.close()


def grown_mb(before: dict[str, Usage], after: dict[str, Usage]) -> float:
    """The most that a process has grown through which audio goes to clients."""
    return max(after[name].pss - before[name].pss for name in AUDIO_PROCESSES)


BOUND = f"the gate, Triton and the front model grow by {GROWTH_MB:.0f} MiB at most; others have all their audio meanwhile"


@pytest.mark.attack(
    "clients that never read, at the gate",
    must=f"the session ends with `CANCELLED` once more than {UNREAD_S:g} s of audio wait, or its stream with `UNAVAILABLE` after "
    f"{SHORT_S:g} s; {BOUND}",
)
def test_the_gate_ends_sessions_that_nobody_hears(hostile: Served, voice: dict[str, Any], sizes: Sizes, attack: Attack) -> None:
    assert hostile.new_session() == "audio"
    before, memory = named(hostile.keeper.pid), usages(hostile.keeper.pid)
    for _ in range(sizes.rounds):
        deaf = [Deaf(hostile.keeper.grpc_url, voice) for _ in range(CLIENTS)]
        assert hostile.new_session() == "audio"
        wait_free(hostile)
        assert grown_mb(memory, usages(hostile.keeper.pid)) < GROWTH_MB
        outcomes = [client.hear() for client in deaf]
        attack.got(outcomes)
        for client in deaf:
            client.close()
        assert set(outcomes) <= {"CANCELLED", "UNAVAILABLE", "CANCELLED UNAVAILABLE"}
        assert all(client.samples <= (UNREAD_S + 60.0) * SAMPLE_RATE for client in deaf)
    finish(hostile, before, memory, attack)


@pytest.mark.slow
@pytest.mark.attack(
    "clients that never read, at Triton's own port",
    must=f"the session goes on as if heard, and all of its audio comes when it is read; {BOUND}",
)
def test_the_models_do_not_wait_for_those_who_do_not_read(hostile: Served, voice: dict[str, Any], sizes: Sizes, attack: Attack) -> None:
    assert hostile.new_session() == "audio"
    before, memory = named(hostile.keeper.pid), usages(hostile.keeper.pid)
    for _ in range(sizes.rounds):
        deaf = [Deaf(hostile.keeper.addresses()["triton"], voice) for _ in range(CLIENTS)]
        assert hostile.new_session() == "audio"
        assert grown_mb(memory, usages(hostile.keeper.pid)) < GROWTH_MB
        wait_free(hostile)
        outcomes = [client.hear() for client in deaf]
        attack.got(outcomes)
        for client in deaf:
            client.close()
        assert outcomes == ["audio"] * CLIENTS and len({client.samples for client in deaf}) == 1 and deaf[0].samples > 0
    finish(hostile, before, memory, attack)


def finish(served: Served, before: dict[str, int], memory: dict[str, Usage], attack: Attack) -> None:
    assert served.new_session() == "audio"
    attack.processes = described(before, named(served.keeper.pid))
    attack.remarks.append(f"most growth of the three {grown_mb(memory, usages(served.keeper.pid)):.0f} MiB")
    assert replaced(before, named(served.keeper.pid)) == []
