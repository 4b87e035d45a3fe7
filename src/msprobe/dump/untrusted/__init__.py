"""What comes from a stranger: opening files, reading YAML and writing texts without being led astray."""
