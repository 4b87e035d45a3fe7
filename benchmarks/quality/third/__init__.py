"""The third held-out set: cases that were written, with their answers, before msprobe was ever run on them."""
