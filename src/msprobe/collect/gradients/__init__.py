"""The gradients of calls, as far as they do not depend on a framework."""
