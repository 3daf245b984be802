"""The language model step of library code in recorded CUDA graphs: any CUDA GPU, any size of network."""
