"""What the stages share on a GPU: which tier of code serves a network on a device, and the pieces that their kernels have in common."""
