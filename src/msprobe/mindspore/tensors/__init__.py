"""MindSpore tensors as text and as files."""
