"""bistream: text-to-speech of CosyVoice2, CosyVoice3 and Spark-TTS that streams both ways. Importing it loads neither torch nor Triton."""

__version__ = "0.1.0"
