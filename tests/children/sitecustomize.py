"""Python reads this file when it starts, in every process that a test starts (tests/conftest.py).

The garbage collector looks less often at what torch's modules allocate, and not once more at everything when the
process ends: that is a third of the CPU time of a short process with an optimizer.
"""

import atexit
import gc

gc.set_threshold(10_000, 10, 10)
atexit.register(gc.freeze)  # the first one registered runs last
