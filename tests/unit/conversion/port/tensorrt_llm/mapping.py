"""``Mapping``: which part of the model a rank has."""

from __future__ import annotations


class Mapping:
    def __init__(
        self, world_size: int = 1, rank: int = 0, gpus_per_node: int = 8, *, cp_size: int = 1, tp_size: int = 1, pp_size: int = 1
    ) -> None:
        if world_size != cp_size * tp_size * pp_size:
            raise ValueError(f"world_size must equal to tp_size * pp_size * cp_size, but got {world_size}")
        self.world_size, self.rank = world_size, rank
        self.tp_size, self.pp_size, self.cp_size = tp_size, pp_size, cp_size
        self.attn_tp_size, self.attn_cp_size = tp_size, cp_size
        self.tp_group = list(range(tp_size))

    @property
    def tp_rank(self) -> int:
        return self.rank % self.tp_size

    @property
    def pp_rank(self) -> int:
        return self.rank // (self.tp_size * self.cp_size)

    def is_last_pp_rank(self) -> bool:
        return self.pp_rank == self.pp_size - 1

    def is_first_pp_rank(self) -> bool:
        return self.pp_rank == 0
