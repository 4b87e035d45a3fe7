"""Compiled graphs: Cells with taps, kernels with MindSpore's own Dump."""
