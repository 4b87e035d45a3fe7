"""Pairs of runs that compute the same: none of them may be reported."""

from __future__ import annotations

from cases import clean
from models import MODELS

for _name, _model in MODELS.items():
    clean(_name, "again")
    if _model.attention:
        clean(_name, "eager attention", other_config={"attn_implementation": "eager"})
