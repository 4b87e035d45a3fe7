"""The picture of a difference where one side or both are infinite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from polling import until
from written import call, saved, write_dump

INF, NAN = np.inf, np.nan
Open = Callable[..., Any]


def pair(root: Path, ours: list[float], theirs: list[float]) -> tuple[Path, Path]:
    for name, numbers in (("t", ours), ("g", theirs)):
        item = saved(root / name / "step0" / "rank", "mask", np.array([numbers], np.float32))
        write_dump(root / name, {"Functional.relu.0.forward": call(item, output=item)}, task="tensor")
    return root / "t", root / "g"


def picture(view: Any) -> tuple[list[list[int]], str]:
    """The colours of the cells, and the caption."""
    page = view.page
    page.evaluate("document.querySelector('#rows .row').click()")
    page.keyboard.press("o")
    page.wait_for_selector("canvas.heat")
    until(page, "document.querySelector('#tensor figcaption').textContent !== ''")
    pixels = page.evaluate(
        "(() => { const c = document.querySelector('canvas.heat');"
        " return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]; })()"
    )
    return [pixels[at : at + 3] for at in range(0, len(pixels), 4)], page.inner_text("#tensor figcaption")


def test_equal_infinities_are_white_and_a_finite_number_against_one_is_the_strongest(
    open_view: Open, tmp_path: Path
) -> None:
    view = open_view(*pair(tmp_path, [-INF, INF, 1.0, -INF, 2.0], [-INF, INF, -INF, 1.0, 2.0]))
    colours, caption = picture(view)
    white, red, blue = [255, 255, 255], [255, 0, 0], [0, 0, 255]
    assert colours == [white, white, red, blue, white]
    assert caption == "infinite cells: 2"


def test_the_caption_has_the_limit_of_the_finite_cells_and_counts_the_others(open_view: Open, tmp_path: Path) -> None:
    view = open_view(*pair(tmp_path, [1.5, NAN, NAN, INF], [1.0, NAN, 1.0, 0.0]))
    colours, caption = picture(view)
    assert colours == [[255, 0, 0], [255, 255, 255], [255, 0, 255], [255, 0, 0]]
    assert caption == "|x| ≤ 0.5 · infinite cells: 1 · NaN cells: 1"


def test_two_equal_tensors_say_so(open_view: Open, tmp_path: Path) -> None:
    colours, caption = picture(open_view(*pair(tmp_path, [-INF, 1.0], [-INF, 1.0])))
    assert colours == [[255, 255, 255]] * 2
    assert caption == "0 everywhere"
