"""bistream: CosyVoice2 text-to-speech that streams both ways. Importing this package loads neither torch nor Triton."""

__version__ = "0.1.0"
