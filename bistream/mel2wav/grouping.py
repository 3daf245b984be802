"""Which sessions share one padded call of a plain vocoder. Pure."""

from __future__ import annotations

from collections.abc import Sequence

MAX_BATCH_FRAMES = 4096  # padded frames of one network call; bounds its memory
MAX_PADDING = 0.25  # rows padded by more than this share go into another call


def group_similar(lengths: Sequence[int], most: int = MAX_BATCH_FRAMES) -> list[list[int]]:
    """Indices in groups of similar length: padding stays below MAX_PADDING, the padded length of a group at or below ``most``."""
    groups: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda item: -lengths[item]):
        longest = lengths[groups[-1][0]] if groups else 0
        fits = groups and lengths[position] >= (1 - MAX_PADDING) * longest and (len(groups[-1]) + 1) * longest <= most
        if fits:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups
