"""Writing a dump: one rank directory, and the thread that touches its files."""
