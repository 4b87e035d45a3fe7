"""`python -m msprobe VERB …`: the command, for launchers that start a module (`torchrun … -m msprobe run …`)."""

import sys

from msprobe.cli import main

sys.exit(main())
