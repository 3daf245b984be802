"""Waveforms without a network: resampling, and a recording that needs no file. numpy only."""
