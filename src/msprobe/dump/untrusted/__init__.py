"""Safe handling of untrusted input: opens files, reads YAML and writes text cells."""
