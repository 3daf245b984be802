# mypy: ignore-errors
"""Barriers in shared memory between the warps of a Gluon kernel (Hopper)."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT barriers of ARRIVALS arrivals each."""
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for number in gl.static_range(COUNT):
        mbarrier.init(bars.index(number), count=ARRIVALS)
    return bars


@gluon.jit
def ring_barriers(SIZE: gl.constexpr, COPIES: gl.constexpr, READERS: gl.constexpr):
    """Barriers of a ring of SIZE slots. full: a slot's data has arrived (COPIES arrivals); empty: all READERS have released it."""
    full = gl.allocate_shared_memory(gl.int64, [SIZE, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SIZE, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SIZE):
        mbarrier.init(full.index(slot), count=COPIES)
        mbarrier.init(empty.index(slot), count=READERS)
    return full, empty
