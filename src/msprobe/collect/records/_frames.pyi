def key(skip: int, /) -> bytes:
    """The identity of the stack without its `skip` innermost frames; the caller's own frame is the first."""
