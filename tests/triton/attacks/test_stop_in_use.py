"""The end of a server that answers an offline request. Last of the busy server, which it ends."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from bistream.contract.refusals import parse_error
from tests.triton.conftest import wait_for
from tests.triton.requests import to_input
from tests.triton.served import Served


def test_an_offline_request_is_answered_before_the_end(busy: Served) -> None:
    keeper = busy.keeper
    client, inside = (triton.InferenceServerClient(url) for url in (keeper.grpc_url, keeper.addresses()["triton"]))
    answers: list[NDArray[np.float32]] = []
    before = analysed(inside)
    inputs = [to_input(name, value) for name, value in busy.new_voice().items()]
    inputs.append(to_input("target_text", "Streets and trees. " * 5))
    request = threading.Thread(target=lambda: answers.append(client.infer("cosyvoice2", inputs).as_numpy("waveform")))
    request.start()
    try:
        wait_for(lambda: analysed(inside) > before, "the request to be worked on")
        keeper.signal()
        keeper.wait_said("draining: 1 sessions left")
        for refusing in (client, inside):  # the gate, and the other instance, which refuses at once
            with pytest.raises(InferenceServerException) as refusal:
                refusing.infer("cosyvoice2", inputs)
            assert parse_error(refusal.value.message()).code == "SHUTTING_DOWN"
        assert answers == [] and not keeper.has_ended
    finally:
        request.join()
    client.close()
    inside.close()
    assert answers[0].size > 0 and np.isfinite(answers[0]).all()
    keeper.check_end()


def analysed(client: triton.InferenceServerClient) -> int:
    """Recordings whose voice the server has. client: of the server itself."""
    return int(client.get_inference_statistics("speaker_embedding").model_stats[0].inference_count)
