"""The vocoder on a CUDA GPU: Triton kernels, one recorded graph per bucket. Imported by ``factory`` alone."""
