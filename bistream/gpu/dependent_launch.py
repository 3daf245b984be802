# mypy: ignore-errors
"""Programmatic dependent launch, for Triton and Gluon kernels alike.

A kernel launched with ``launch_pdl`` starts while its predecessor runs: it prefetches data that does not depend on this call (weights,
indices, stored state) and waits before it reads results of this call. Nothing is written before the wait. Without ``launch_pdl`` both
instructions are no-ops.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_predecessor():
    """Results of the preceding kernel can be read from here on."""
    gdc_wait()


@triton.jit
def start_successor():
    """The next kernel may start: it prefetches its weights while this one runs."""
    gdc_launch_dependents()


@triton.jit
def begin(PDL: tl.constexpr):
    """Wait for the preceding kernel, then let the next one start. PDL: whether kernels are launched with ``launch_pdl``."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
