"""The flow's solver in recorded CUDA graphs, of library code alone: every CUDA GPU, every size of network."""
