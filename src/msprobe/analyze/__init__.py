"""Answers from one dump: finds the call that produced the first NaN or infinity, and runs that call again."""
