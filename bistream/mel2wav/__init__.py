"""Mel frames in, 24 kHz waveform out: the HiFT vocoder, incremental and batched over sessions. Called by ``token2wav``."""
