"""The execution graph: its operators, and the files of each operator."""
