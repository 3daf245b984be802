"""Kernels of ours that recorded graphs launch beside library code, on every CUDA GPU that Triton compiles for. Imported only there."""
