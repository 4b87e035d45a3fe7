"""What the tasks overflow_check and free_benchmark hook into PyTorch."""
