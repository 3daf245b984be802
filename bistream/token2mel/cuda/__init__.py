"""The flow on a CUDA GPU: kernels on packed rows, one recorded graph per bucket. Reached through ``factory`` alone.

Rows are packed: the new frames (or tokens) of all sessions follow one another without padding. ``live`` pointers hold how many rows
there are in this call; a program whose rows lie behind them does nothing, so one recorded launch serves every smaller batch. Buffers of
the estimator hold two guidance halves, ``rows`` apart. Residual streams are float32, everything that enters a matrix product is 16 bit,
sums are float32.
"""
