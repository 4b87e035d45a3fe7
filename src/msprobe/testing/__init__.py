"""The pytest plugin: `numerics`, a fixture that checks the numbers of a test against a baseline in the repository."""
