"""Alarms: the usual values of each target, and the rules that detect unusual ones."""
