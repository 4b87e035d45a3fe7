"""PyTorch without hooks: which calls are APIs."""
