"""The plugin's logger, by the framework's naming."""

import logging

logger = logging.getLogger("livekit.plugins.bistream")
