"""Which fault of a parallel run explains a difference: its kind, its ranks, the dimension of the mesh."""
