"""The gradients of calls and parameters, read off MindSpore's backward graph."""
