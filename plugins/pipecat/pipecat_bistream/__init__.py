"""bistream for Pipecat: ``BistreamTTSService("localhost:8001", Speaker(speaker_id="anna"))`` in a pipeline."""

from bistream.client.connection import ClientSecurity
from bistream.client.speaker import Speaker
from pipecat_bistream.tts import BistreamTTSService

__all__ = ["BistreamTTSService", "ClientSecurity", "Speaker"]
