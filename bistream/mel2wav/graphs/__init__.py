"""The vocoder from library code in recorded CUDA graphs: every CUDA GPU, every size of network."""
