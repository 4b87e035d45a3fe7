"""The member "precision" of a recorded tensor: what low-precision formats would do to it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Callable, Optional, Protocol

from msprobe.collect.records.values import Adapter
from msprobe.dump.products import WEIGHTS, role_of_path, split_path
from msprobe.dump.record_keys import DAMAGE

_DIGITS = 6


class MatrixAdapter(Adapter, Protocol):
    """An adapter that can also read a tensor."""

    def matrix(self, tensor: Any) -> Optional[Any]:
        """The values as an array of float32; None for a tensor of fewer than two dimensions, or of no floats."""


class DamageTexts:
    """Renders as `texts` does, and adds the member to tensors that are factors of a product.

    `saves` says whether the tensors of a record have files. A text with the number of its value is measured once.
    """

    def __init__(
        self, texts: MatrixAdapter, formats: Sequence[str], saves: Optional[Callable[[str], bool]] = None
    ) -> None:
        from msprobe.stats.damage import measure_formats
        from msprobe.stats.formats import BY_NAME

        self.tensor_types = texts.tensor_types
        self._texts = texts
        self._formats = [BY_NAME[name] for name in formats]
        self._measure = measure_formats
        self._saves = saves
        self._known: dict[tuple[str, bool], str] = {}

    def tensor_text(self, tensor: Any, path: str) -> str:
        return self._add(self._texts.tensor_text(tensor, self._file(path)), tensor, path)

    def other_text(self, value: Any, path: str) -> Optional[str]:
        text = self._texts.other_text(value, self._file(path))
        return text if text is None or '"shape": [' not in text else self._add(text, value, path)

    def _file(self, path: str) -> str:
        """The path if this tensor has a file, else ""."""
        return path if path and self._saves is not None and self._saves(split_path(path)[0]) else ""

    def _add(self, text: str, tensor: Any, path: str) -> str:
        role = role_of_path(path) if path else ""
        if not role or not text.endswith("}"):
            return text
        key = (text, role == WEIGHTS)
        member = self._known.get(key)
        if member is None:
            values = self._texts.matrix(tensor)
            member = "" if values is None else self._render(values, role == WEIGHTS)
            if '"value_id": ' in text:
                self._known[key] = member
        return f"{text[:-1]}{member}}}"

    def _render(self, values: Any, weight: bool) -> str:
        found = {
            name: [{key: _short(value) for key, value in one.as_record().items()} for one in damages]
            for name, damages in self._measure(values, self._formats, weight).items()
        }
        return f', "{DAMAGE}": {json.dumps(found)}'


def _short(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) and math.isfinite(value) else value
