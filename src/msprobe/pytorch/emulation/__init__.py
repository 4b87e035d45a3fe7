"""Runs the Linear modules of a script in an emulated low-precision format: for `msprobe precision --emulate`."""
