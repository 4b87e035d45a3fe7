"""Only for support_wrap_ops.yaml, the list of APIs that users edit: mindstudio-probe's documents fix this path."""
