"""Whether a difference is more than rounding."""
