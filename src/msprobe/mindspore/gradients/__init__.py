"""The gradients of calls and parameters, read from MindSpore's backward graph."""
