"""Task overflow_check: find and record the calls that make or pass on NaN and infinity."""
