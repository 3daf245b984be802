"""Messages that are put together from parts."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from bistream.client.exchange import Request
from bistream.client.messages import RequestMessages
from bistream.client.translation import infer_request
from bistream.contract.fields import COSYVOICE2_BISTREAM


@given(
    pieces=st.lists(
        st.fixed_dictionaries({"target_text": st.binary(max_size=20), "is_start": st.just(False), "is_end": st.booleans()})
        | st.just({"is_cancel": True}),
        max_size=6,
    ),
    secrets=st.lists(st.sampled_from(["a", "b"]), min_size=6, max_size=6),
)
def test_requests_as_bytes_are_the_messages_of_the_protocol(pieces: list[dict[str, Any]], secrets: list[str]) -> None:
    """However they are put together; a session that begins anew gets another secret."""
    messages = RequestMessages(COSYVOICE2_BISTREAM.name)
    for number, (values, secret) in enumerate(zip(pieces, secrets, strict=False)):
        request = Request(values, f"r{number}", {"session_secret": secret})
        expected = infer_request(COSYVOICE2_BISTREAM.name, request.request_id, values, request.parameters, wants_empty_final=False)
        assert service_pb2.ModelInferRequest.FromString(messages.encoded(request)) == expected
