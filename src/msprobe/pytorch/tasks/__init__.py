"""The hooks of the tasks overflow_check and free_benchmark in PyTorch."""
