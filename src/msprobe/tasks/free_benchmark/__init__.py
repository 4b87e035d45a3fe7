"""Task free_benchmark: run a call again on changed input and compare the two results."""
