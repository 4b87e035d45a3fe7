"""torch.compile: how compiled regions are recorded, and the check that finds wrong compiled code (`check/`)."""
