"""Level L0: modules."""
