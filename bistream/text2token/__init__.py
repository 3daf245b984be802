"""Text to speech tokens: the language model with text appended to live sequences."""
