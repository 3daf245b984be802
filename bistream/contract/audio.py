"""What the wire contract itself says of audio. The rate of the speech is the checkpoint's (``AudioFormat``); a server tells it in the
parameters ``sample_rate`` and ``tokens_per_second`` of its front models."""

from __future__ import annotations

from collections.abc import Mapping

REFERENCE_SAMPLE_RATE = 16_000  # Hz of every recording in a request
UPSTREAM_SAMPLE_RATE = 24_000  # Hz of the speech of a server that does not tell it
UPSTREAM_TOKENS_PER_SECOND = 25  # of speech, likewise
SYNTHETIC = "synthetic speech"  # comment of files of the speech
SILENCE_S = 0.1  # spoken for a text without anything to speak: agents take an utterance without audio for a failure


def is_marked(parameters: Mapping[str, str]) -> bool:
    """Whether a server may lay the watermark over its audio. parameters: of its front model's configuration."""
    return parameters.get("watermark", "off") != "off"


def sample_rate_of(parameters: Mapping[str, str]) -> int:
    """Of the speech of a server. parameters: of its front model's configuration. Raises ``ValueError`` where it is no rate."""
    rate = int(parameters.get("sample_rate", UPSTREAM_SAMPLE_RATE))
    if rate < 1:
        raise ValueError(f"sample_rate is {rate}")
    return rate
