"""The accuracy check (run_ut): runs every API of a dump again and compares it with a golden in higher precision.

core       what needs no framework:
  plan       which calls of a dump are checked, and why the others are not
  generate   makes inputs from statistics
  arguments  reads the arguments of a record
  framework  what the check needs from PyTorch or MindSpore; the folders `pytorch` and `mindspore` implement it
  measure    the metrics of one output; judge turns them into a verdict
  worker     the process in which calls run; pool runs several of them and replaces those that die
  results    the two csv files, written during the check, which can be resumed
online     the check during a training run
"""
