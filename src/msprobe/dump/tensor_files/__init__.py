"""Tensor files: .pt and .npy, written once each, read without the framework."""
