"""The accuracy pre-check: every API of a dump again, against a golden in raised precision.

plan       which calls of a dump are checked, and why the others are not
generate   inputs made from statistics
arguments  a record's arguments, from JSON back to values
framework  what is needed of PyTorch or MindSpore: a call by its name in the support list, run on the device under test,
           on the golden side, and with inputs moved by rounding; `pytorch_*` and `mindspore_*` implement it
measure    the metrics of one output; judge turns them into a verdict
worker     the process in which calls run; pool keeps several of them and survives their deaths
results    the two csv files, appended as results come, and resumed from
"""
