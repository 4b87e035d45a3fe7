"""One run: start, stop, step, the debugger that the user calls, and the summary at the end."""
