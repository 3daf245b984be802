# mypy: ignore-errors
"""Programmatic dependent launch, for Triton and Gluon kernels alike.

A kernel that was launched with ``launch_pdl`` starts while its predecessor runs: it fetches what does not depend on this call (weights,
indices, stored state) and waits before it reads what the call computed. Nothing is written before the wait. Without ``launch_pdl`` both
instructions do nothing.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_predecessor():
    """What the kernel before wrote can be read from here on."""
    gdc_wait()


@triton.jit
def start_successor():
    """The next kernel may start: it fetches its weights while this one works."""
    gdc_launch_dependents()


@triton.jit
def begin(PDL: tl.constexpr):
    """Wait for the kernel before, then let the next one start. PDL: whether kernels are launched so at all."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
