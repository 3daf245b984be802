"""The language model step on CUDA: a fixed sequence of kernels, one recorded graph per bucket of rows.

Every reduction has one order, whatever the number of rows, so that a row's numbers never depend on its neighbours:

- a product over K is cut into fixed chunks of K (128; 640 in the down projection). A chunk is summed by the tensor core,
  16 at a time, ascending, from zero; the chunks are added in ascending order in float32. Kernels for few rows give each chunk
  to one warp, kernels for many rows walk through the chunks: the same numbers (mma and wgmma agree to the bit on Hopper);
- sums of squares (RMSNorm) are added as integers (``arithmetic.squares``), which no order can change;
- a row's attention is cut into splits of 64 positions counted from position 0, combined in ascending order.

Kernels are compiled without fusing multiplications and additions (``enable_fp_fusion``); where they are fused it is written.
"""
