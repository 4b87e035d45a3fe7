"""Level L0: Cells."""
