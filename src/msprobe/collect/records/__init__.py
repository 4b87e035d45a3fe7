"""One record: which calls are wanted, their numbers, values as text, stacks."""
