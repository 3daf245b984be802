"""Reach of the flow's convolutions to the left, fixed by their kernels. No torch."""

LOOKAHEAD_HISTORY_TOKENS = 2  # second lookahead convolution of the encoder (kernel 3), at 25 Hz
UPSAMPLE_HISTORY_TOKENS = 2  # upsampling convolution (kernel 2 * ratio + 1 over frames repeated ratio times)
CONV_HISTORY_FRAMES = 2  # causal convolutions of the estimator (kernel 3), at 50 Hz
