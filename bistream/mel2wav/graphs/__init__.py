"""The vocoder from library code in recorded CUDA graphs: for every CUDA GPU and every network size."""
