"""Which call of one run belongs to which call of the other."""
