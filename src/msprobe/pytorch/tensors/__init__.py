"""PyTorch tensors as text and as files."""
