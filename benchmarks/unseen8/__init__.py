"""An eighth set of faults and clean pairs, written without knowledge of how compare works."""
