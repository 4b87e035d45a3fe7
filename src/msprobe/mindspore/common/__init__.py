"""Only for `utils`: mindstudio-probe's documents fix this path."""
