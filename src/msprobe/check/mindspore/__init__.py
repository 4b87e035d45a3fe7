"""The accuracy check on MindSpore."""
