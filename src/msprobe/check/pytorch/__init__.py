"""The accuracy check on PyTorch."""
