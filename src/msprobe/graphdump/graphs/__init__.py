"""The execution graph: its operators, and which file belongs to which operator."""
