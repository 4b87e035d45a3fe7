"""torch.compile: what is recorded of a compiled region, and the check that finds wrong compiled code (`check/`)."""
