"""Kernels of ours that recorded graphs launch beside library code. Imported only there."""
