"""`msprobe.view("target", "golden")` in a notebook: the page of `msprobe view --export` in the output of a cell.

The page is part of the notebook, so it still opens when the dumps are gone, and needs no server. It runs in a frame of
its own that can reach nothing of the notebook.
"""

from __future__ import annotations

import html
import os
import tempfile
from pathlib import Path
from typing import Optional, Union

HEIGHT = 800
Place = Union[str, "os.PathLike[str]"]


class View:
    """What a notebook shows as HTML; elsewhere, `print` gives the answer in words."""

    def __init__(self, page: str, words: str, height: int) -> None:
        self._page, self._words, self._height = page, words, height

    def _repr_html_(self) -> str:
        frame = 'sandbox="allow-scripts" style="width: 100%; border: 1px solid #8888; border-radius: 6px"'
        return f'<iframe {frame} height="{self._height}" srcdoc="{html.escape(self._page)}"></iframe>'

    def __repr__(self) -> str:
        return self._words


def show(target: Place, golden: Optional[Place] = None, height: int = HEIGHT) -> View:
    """The page of one or two dumps, of results of run_ut, of a watched run or of a proof. `height` is in pixels.

    Raises DumpError if there is nothing to view.
    """
    from msprobe.view.export import export_material
    from msprobe.view.material import open_material

    material = open_material(Path(target), None if golden is None else Path(golden))
    with tempfile.TemporaryDirectory(prefix="msprobe_view") as folder:
        file = Path(folder) / "view.html"
        export_material(material, file)
        page = file.read_text(encoding="utf-8")
    answer = material.answer
    return View(page, f"msprobe view: {answer.sentence or answer.verdict}", int(height))
