"""Starts processes, and handles signals."""
