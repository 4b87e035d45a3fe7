"""Compiled graphs: Cells through taps, kernels through the framework's Dump."""
