"""Where the difference started."""
