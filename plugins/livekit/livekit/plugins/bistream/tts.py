"""The framework's text-to-speech interface: one object for an agent, a stream for each turn."""

from __future__ import annotations

import asyncio
import os

from livekit.agents import DEFAULT_API_CONNECT_OPTIONS, APIConnectOptions, tts
from livekit.plugins.bistream.stream import SynthesizeStream

from bistream.client.asyncio_client import AsyncBistreamClient
from bistream.client.connection import API_KEY_VARIABLE, ClientSecurity
from bistream.client.speaker import Speaker
from bistream.contract.audio import UPSTREAM_SAMPLE_RATE


class TTS(tts.TTS[str]):
    """Speaks through a bistream server over gRPC. Belongs to one event loop; ``aclose`` ends the connection."""

    def __init__(
        self,
        address: str,
        speaker: Speaker,
        *,
        security: ClientSecurity | None = None,
        speak_after_s: float = 2.0,
        tells_estimates: bool = True,
        continues_turns: bool = True,
        sample_rate: int = UPSTREAM_SAMPLE_RATE,
    ) -> None:
        """address: of the server's gRPC port. security: API key and TLS; without it the key of the variable BISTREAM_API_KEY.
        speak_after_s: a pause of the language model after which what it has written is spoken to its end; 0: never.
        tells_estimates: words count as spoken where the voice is estimated to be; else where it certainly is, which is later.
        continues_turns: a turn goes on with the melody of the one before, as long as that is less than a minute old; False for an object
        that speaks in several conversations.
        sample_rate: of the server's audio (``bistream info``), which the framework wants to know before there is a connection.
        """
        super().__init__(capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=True), sample_rate=sample_rate, num_channels=1)
        self.client = AsyncBistreamClient(
            address, security=security or ClientSecurity(os.environ.get(API_KEY_VARIABLE) or None), keeps_channel=True
        )
        self.speaker = speaker
        self.speak_after_s = speak_after_s
        self.tells_estimates = tells_estimates
        self.continues_turns = continues_turns
        self.spoken: str | None = None  # the session that spoke last

    @property
    def model(self) -> str:
        return self.client.model_name

    @property
    def provider(self) -> str:
        return "bistream"

    def update_options(self, *, speaker: Speaker) -> None:
        """For the streams that are made from now on."""
        self.speaker = speaker

    def synthesize(self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> tts.ChunkedStream:
        return self._synthesize_with_stream(text, conn_options=conn_options)

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> SynthesizeStream:
        return SynthesizeStream(tts=self, turn_options=self, conn_options=conn_options)

    def prewarm(self) -> None:
        """Connects. Without an event loop the first turn does."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self.client.channel().get_state(try_to_connect=True)

    async def aclose(self) -> None:
        await self.client.close()
