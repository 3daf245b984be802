"""What a proxy before the servers (Envoy) makes of a lost server, as one sentence: a gRPC status, which says nothing about what to do.

Where the proxy is set up by ``deploy/envoy/envoy.yaml``, it answers with a code and a sentence itself as long as no answer of the server
has been passed on; after that it can only reset the stream.
"""

from __future__ import annotations

import re

# Parts of the details of a status (Envoy 1.40, grpcio 1.85), and what they mean. The first match counts.
_MEANINGS: tuple[tuple[str, str], ...] = (
    (r"no healthy upstream", "No server behind {address} takes sessions at the moment; try again in a few seconds."),
    (
        r"upstream request timeout|stream timeout|response timeout",
        "The proxy at {address} has ended the session after its own time limit; switch off its route time-out (deploy/envoy).",
    ),
    (
        r"RST_STREAM|upstream connect error|reset reason|connection termination",
        "The server that spoke this session was lost behind {address}; start the session again.",
    ),
)


def proxy_sentence(details: str, address: str) -> str | None:
    """The sentence for the user, or ``None`` where these are not the words of a proxy. details: of a gRPC status."""
    for pattern, sentence in _MEANINGS:
        if re.search(pattern, details):
            return sentence.format(address=address)
    return None
