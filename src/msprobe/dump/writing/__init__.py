"""Writes a dump: one rank directory, and the thread that writes its files."""
