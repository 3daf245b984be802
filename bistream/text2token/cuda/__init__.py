"""The language model step on CUDA: a fixed sequence of kernels, one recorded graph per bucket of rows.

The step is batch-invariant: every reduction has one order, whatever the number of rows:

- a product over K is cut into fixed chunks of K (128; 640 in the down projection). A chunk is summed by the tensor core,
  16 at a time, ascending, from zero; the chunks are added in ascending order in float32. Kernels for few rows give each chunk
  to one warp, kernels for many rows loop over the chunks: the same results (mma and wgmma agree to the bit on Hopper);
- sums of squares (RMSNorm) are integer sums (``arithmetic.squares``), which do not depend on the order;
- a row's attention is cut into splits of 64 positions counted from position 0, combined in ascending order.

Kernels are compiled without contraction into fused multiply-adds (``enable_fp_fusion=False``); where one is used it is explicit.
"""
