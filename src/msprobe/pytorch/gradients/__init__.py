"""The gradients of calls, read from the autograd graph."""
