"""A run that msprobe directs: it records as `msprobe run` does, and acts at chosen calls."""
