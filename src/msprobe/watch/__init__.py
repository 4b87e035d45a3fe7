"""Watch a training run all the time: statistics over steps, alarms, and a dump when something goes wrong.

Nothing here imports a framework. `msprobe.pytorch.watch` and `msprobe.mindspore.watch` take the numbers from theirs;
the database file of a rank (`store`) is the boundary between them and everything that reads.
"""
