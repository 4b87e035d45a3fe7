"""The flow of values through one run: which call made a value, which calls use it, and what follows from it."""
