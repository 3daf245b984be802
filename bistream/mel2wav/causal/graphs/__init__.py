"""The causal vocoder in recorded CUDA graphs, of library code and the kernel of ``cuda``."""
