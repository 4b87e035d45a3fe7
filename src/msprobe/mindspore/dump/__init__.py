"""Only for `hook_cell`: mindstudio-probe's documents fix this path."""
