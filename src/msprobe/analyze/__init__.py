"""Answers from one dump: who made the first NaN or infinity, and that one call again."""
