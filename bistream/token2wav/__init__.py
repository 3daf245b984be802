"""Speech tokens to waveform: hops of many sessions through flow and vocoder, batched."""
