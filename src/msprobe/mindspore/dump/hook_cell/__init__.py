"""Only for support_wrap_ops.yaml, the list of APIs that users edit: the field's documents fix this path."""
