"""Alarms: what is usual for a target, and the rules that say when something is not."""
