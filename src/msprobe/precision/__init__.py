"""What a low-precision format would do to a recorded model, from a dump: `msprobe precision`."""
