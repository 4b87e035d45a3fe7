"""The dump directory: the only place that knows its file names and formats.

Collecting writes through `writer`, everything else reads through `reader`; `layout` has the names,
`journal` the append-only lines from which the json files are made, `tensors` the tensor files.
"""
