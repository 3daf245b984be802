"""The vocoder on a CUDA GPU: Triton kernels, one recorded graph per size. Reached through ``factory`` alone."""
