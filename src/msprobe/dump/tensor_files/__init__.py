"""Tensor files: .pt and .npy, each written once, read without the framework."""
