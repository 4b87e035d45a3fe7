"""Strict JSON for programs. JSON has no NaN and no infinity: they are the texts "NaN", "Infinity" and "-Infinity",
everywhere in the output of `--json`. (dump.json has them as bare tokens, as mindstudio-probe writes them.)
"""

from __future__ import annotations

import math
from typing import Any


def strict(value: Any) -> Any:
    """The value with texts in place of numbers that JSON does not have, also inside lists and objects."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return value
