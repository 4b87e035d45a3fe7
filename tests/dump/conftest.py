"""Property tests here have no time limit: a busy machine is not a failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("dump", deadline=None)
settings.load_profile("dump")
