"""The dump directory. Only this package knows its file names and formats.

Collecting writes through `writing`; everything else reads through `reader`. `layout` has the names, `journal` the
append-only lines from which the json files are made, `tensor_files` the tensor files.
"""
