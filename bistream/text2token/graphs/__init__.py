"""The language model step in recorded CUDA graphs: kernels in plain Triton, and the same in plain PyTorch for the CPU."""
