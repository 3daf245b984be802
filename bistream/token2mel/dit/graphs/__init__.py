"""The solver of CosyVoice3's flow in recorded CUDA graphs, of library code and the kernels of ``cuda``."""
