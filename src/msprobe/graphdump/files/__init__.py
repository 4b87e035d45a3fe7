"""The files of a Graph-mode Dump: names, formats, layouts and conversion."""
