"""Level L1: API calls of MindSpore."""
