"""The step's kernels, in plain Triton."""
