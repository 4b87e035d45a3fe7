"""Collecting, the same for all frameworks: when (lifecycle), what (selection), under which name, and as which text."""
