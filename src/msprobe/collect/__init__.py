"""Collecting, without knowing the framework: when (lifecycle), what (selection), under which name, and as what text."""
