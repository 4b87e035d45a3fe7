"""Level L2: ATen operators and Ascend kernels."""
