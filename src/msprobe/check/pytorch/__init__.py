"""The pre-check on PyTorch."""
