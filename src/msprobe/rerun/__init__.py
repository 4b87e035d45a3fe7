"""Runs a script again and says what the runs have to say about each other: does it repeat itself?

The scripts run in processes of their own (`launch`) and write dumps; this package reads them and needs no framework.
"""
