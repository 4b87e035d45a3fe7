"""`python -m msprobe.cli`, for where the script is not on the path."""

import sys

from msprobe.cli import main

sys.exit(main())
