"""The flow's solver in recorded CUDA graphs of library code, for any CUDA GPU and network size."""
