"""A checkpoint on the disk: its files, sizes and tensors, what it can do, and where it is downloaded from."""
