"""The gradients of calls, read off the autograd graph."""
