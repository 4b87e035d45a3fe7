"""How msprobe starts processes, and what it does when a signal interrupts it."""
