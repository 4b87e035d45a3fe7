"""Only for `hook_cell`: the field's documents fix this path."""
