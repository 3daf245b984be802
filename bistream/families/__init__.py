"""The model families that can be served: one description each, and their registry. Pure data: no torch, no files.

``checkpoints.files.family_of`` chooses the description for a model directory; all else takes what it needs from it, most of it through
``CheckpointConfig``, and never asks for the name.
"""
