"""`python -m msprobe VERB …`: the command, for launchers that start a module (`torchrun … -m msprobe run …`)."""

import sys

if sys.argv[1:2] != ["run"]:
    del sys.path[0]  # the current directory, which may be somebody else's dump; `run` runs the user's own script

from msprobe.cli import main

sys.exit(main())
