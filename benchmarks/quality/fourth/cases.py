"""All cases of the fourth set; importing this fills `cases.FAULTS` and `cases.CLEAN` with them."""

from __future__ import annotations

from cases import Case

from fourth import clean as clean
from fourth import forward as forward
from fourth import others as others
from fourth.models import FOURTH


def is_fourth(case: Case) -> bool:
    return case.model in FOURTH
