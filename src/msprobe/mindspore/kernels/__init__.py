"""Level L2 in dynamic mode: MindSpore's kernels."""
