"""The flow on a CUDA GPU: kernels on packed rows, one recorded graph per bucket. Reached through ``factory`` alone.

Rows are packed: the new frames (or tokens) of all sessions follow one another without padding. ``live`` points to the number of
rows of this call; a program whose rows lie after them does nothing, so one recorded launch serves every smaller batch. Buffers of the
estimator hold two guidance halves, ``rows`` apart. Residual streams and accumulators are float32, operands of matrix products 16 bit.
"""
