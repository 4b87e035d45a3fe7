"""Is compiled code wrong, or only rounded differently? `session.py` checks each region, `locate.py` finds the node."""
