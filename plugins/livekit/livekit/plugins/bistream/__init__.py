"""bistream for LiveKit Agents: ``tts=bistream.TTS("localhost:8001", bistream.Speaker(speaker_id="anna"))``."""

from livekit.agents import Plugin
from livekit.plugins.bistream.log import logger
from livekit.plugins.bistream.stream import SynthesizeStream
from livekit.plugins.bistream.tts import TTS
from livekit.plugins.bistream.version import __version__

from bistream.client.connection import ClientSecurity
from bistream.client.speaker import Speaker

__all__ = ["TTS", "ClientSecurity", "Speaker", "SynthesizeStream", "__version__"]


class BistreamPlugin(Plugin):
    def __init__(self) -> None:
        super().__init__(__name__, __version__, __package__ or __name__, logger)


Plugin.register_plugin(BistreamPlugin())
