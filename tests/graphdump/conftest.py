"""The sample makers next to the tests are modules of their own: make them importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
