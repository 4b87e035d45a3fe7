"""Watches a training run at every step: statistics, alarms, and a dump when something goes wrong.

Nothing here imports a framework. `msprobe.pytorch.watch` and `msprobe.mindspore.watch` measure the tensors. The
database file of a rank (`store`) is the boundary between them and everything that reads.
"""
