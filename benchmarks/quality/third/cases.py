"""All cases of the third set; importing this fills `cases.FAULTS` and `cases.CLEAN` with them."""

from __future__ import annotations

from cases import Case

from third import backward as backward
from third import clean as clean
from third import distribution as distribution
from third import forward as forward
from third import networks as networks
from third import precision as precision
from third import updates as updates
from third import weights as weights
from third.distribution import SHARDED
from third.models import THIRD


def is_third(case: Case) -> bool:
    return case.model in THIRD or case.model in SHARDED
