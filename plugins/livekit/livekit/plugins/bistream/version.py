"""Of the package, as the framework logs it."""

from importlib.metadata import version

__version__ = version("livekit-plugins-bistream")
