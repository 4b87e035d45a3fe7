"""Runs in different parallel layouts: their ranks are compared as one run, in global coordinates."""
