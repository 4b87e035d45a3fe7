"""Is the compiled code wrong, or only rounded? `session.py` runs each region, `locate.py` finds the node."""
