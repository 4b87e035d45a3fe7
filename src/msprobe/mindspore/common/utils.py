"""Where mindstudio-probe's documents import `MsprobeStep` from; it lives in `msprobe.mindspore.callbacks`."""

from msprobe.mindspore.callbacks import MsprobeStep

__all__ = ["MsprobeStep"]
