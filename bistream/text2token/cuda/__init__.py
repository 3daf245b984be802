"""The language model step on CUDA."""
