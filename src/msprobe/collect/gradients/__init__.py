"""The gradients of calls, without a framework."""
