"""Only for `utils`: the field's documents fix this path."""
