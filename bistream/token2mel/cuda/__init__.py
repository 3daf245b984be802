"""The flow on a CUDA GPU: Triton kernels on packed rows, one recorded graph per size. Reached through ``factory`` alone."""
