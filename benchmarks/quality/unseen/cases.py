"""All unseen cases; importing this fills `cases.FAULTS` and `cases.CLEAN` with them."""

from __future__ import annotations

from cases import Case

from unseen import backward as backward
from unseen import clean as clean
from unseen import data as data
from unseen import distribution as distribution
from unseen import forward as forward
from unseen import inference as inference
from unseen import networks as networks
from unseen import precision as precision
from unseen import updates as updates
from unseen import weights as weights
from unseen.distribution import SHARDED
from unseen.mindspore_pair import MINDSPORE
from unseen.models import UNSEEN


def is_unseen(case: Case) -> bool:
    return case.model in UNSEEN or case.model in SHARDED or case.model == MINDSPORE
