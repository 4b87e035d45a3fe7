"""The pre-check on MindSpore."""
