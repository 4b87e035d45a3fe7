"""Heat maps of modules by steps, and the block scales of a saved tensor."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from polling import LONGEST, until
from written import call, saved, write_dump

from msprobe.dump.errors import DumpError
from msprobe.stats.formats import BY_NAME, block_scales
from msprobe.view import block_scales as pictures
from msprobe.view.watched import Watched
from msprobe.watch.store import ABSENT, Store
from msprobe.watch.targets import Target

Open = Callable[..., Any]


def watched(path: Path, steps: int = 60) -> Path:
    """Signal-to-noise ratios of three modules in every 10th step, norms of their gradients in every step."""
    store = Store(path / "watch.sqlite", {"framework": "pytorch", "rank": None}, 1 << 30, None)
    names = [f"blocks.{number}.fc" for number in range(3)]
    store.add([(Target("grad", f"{name}.weight", place), ("norm",)) for place, name in enumerate(names)])
    store.add(
        [(Target("quantisation.mxfp8", f"{name}.input", place), ("norm", "snr")) for place, name in enumerate(names)]
    )
    for step in range(steps):
        numbers = np.repeat(ABSENT, 9)
        numbers[:3] = [1.0, 2.0, np.nan if step == 5 else 3.0]
        if step % 10 == 0:
            numbers[3:] = [7.0, 30.0 - step / 10, 8.0, 20.0, 9.0, 10.0]
        store.write(step, numbers)
    store.close()
    return path


def test_a_step_without_a_number_is_empty_and_nan_stays_nan(tmp_path: Path) -> None:
    matrix = Watched(watched(tmp_path), None).matrix("norm", 0)
    rows = dict(zip(matrix["labels"], matrix["values"]))
    assert rows["quantisation.mxfp8/blocks.0.fc.input"][:11] == [7.0, *[None] * 9, 7.0]
    gradient = rows["grad/blocks.2.fc.weight"]
    assert np.isnan(gradient[5])
    assert gradient[:5] + gradient[6:] == [3.0] * 59


def test_a_column_of_several_steps_ignores_those_without_a_number(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("msprobe.view.watched.MOST_COLUMNS", 6)
    matrix = Watched(watched(tmp_path), None).matrix("snr", 0)
    assert matrix["steps"] == [0, 10, 20, 30, 40, 50]
    assert matrix["values"][0] == [30.0, 29.0, 28.0, 27.0, 26.0, 25.0]


def test_one_kind_is_a_picture_of_modules_by_steps(open_view: Open, tmp_path: Path) -> None:
    page = open_view(watched(tmp_path / "watch")).page
    page.wait_for_selector("#heat")
    assert page.locator("#kind option").all_inner_texts() == ["all", "grad", "quantisation.mxfp8"]
    page.select_option("#statistic", "snr")
    until(page, "document.querySelectorAll('#kind option').length === 2")
    page.select_option("#kind", "quantisation.mxfp8")
    until(page, "document.getElementById('trends').innerText.includes('Modules by steps: quantisation.mxfp8, snr')")
    until(page, "document.getElementById('curve_name').textContent.includes('blocks.')")
    box = page.locator("#heat").bounding_box()
    page.mouse.move(box["x"] + 251, box["y"] + 8)
    until(page, "document.body.innerText.includes('blocks.0.fc.input')")
    until(page, "document.body.innerText.includes('step 0: 30')")
    page.mouse.move(box["x"] + 250 + 1.5 * (box["width"] - 250) / 6, box["y"] + 8)
    until(page, "document.body.innerText.includes('step 10: 29')")  # only steps with numbers have a column
    page.mouse.click(box["x"] + 300, box["y"] + 24)
    until(page, "document.getElementById('curve_name').textContent === 'Curve: quantisation.mxfp8/blocks.1.fc.input'")
    assert "10 " in page.inner_text("#heat_colours")
    assert "30" in page.inner_text("#heat_colours")
    page.keyboard.press("d")
    page.keyboard.press("l")
    until(page, "document.getElementById('trends').innerText.includes('类别')")


def numbers_of(packed: str, found: dict[str, Any]) -> Any:
    return np.frombuffer(base64.b64decode(packed), "<f4").reshape(found["height"], found["width"])


@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("form", pictures.FORMATS)
def test_scales_are_those_of_the_format(form: str, along: str) -> None:
    matrix = np.random.default_rng(0).normal(size=(130, 70)) * np.exp2(np.arange(130) // 16)[:, None]
    found = pictures.picture(matrix, form, along)
    turned = np.abs(matrix if along == "rows" else matrix.T).astype(np.float32)
    rows, columns = (size or turned.shape[axis] for axis, size in enumerate(BY_NAME[form].block))
    largest = np.array(
        [[turned[y : y + rows, x : x + columns].max() for x in range(0, turned.shape[1], columns)]
         for y in range(0, turned.shape[0], rows)]
    )  # fmt: skip
    scales = block_scales(largest, BY_NAME[form])
    for packed, expected in ((found["largest"], largest), (found["scales"], scales)):
        expected = expected if along == "rows" else expected.T
        assert np.array_equal(numbers_of(packed, found), expected.astype(np.float32))
    assert found["block"] == ([rows, columns] if along == "rows" else [columns, rows])


def test_many_blocks_are_thinned_to_the_largest_and_zeros_have_no_scale() -> None:
    matrix = np.ones((600, 32))
    matrix[7], matrix[100:200], matrix[300, 0] = 64.0, 0.0, np.inf
    found = pictures.picture(matrix, "mxfp8", "rows")
    scales = numbers_of(found["scales"], found)
    assert (found["height"], found["blocks"], found["left_out"]) == (200, 3, 1)
    assert scales[2, 0] == 64 * scales[0, 0] > 0
    assert not scales[34:66].any()


def test_a_format_without_scales_is_refused() -> None:
    with pytest.raises(DumpError, match="'bf16' has no scales; choose from fp8-e4m3"):
        pictures.picture(np.ones((2, 2)), "bf16", "rows")


def point_at(page: Any, across: float, down: float, text: str) -> None:
    """Moves the mouse over the picture until its tooltip has the text: the page may still move it."""
    end = time.monotonic() + LONGEST
    picture = page.locator("#scales_picture")
    while text not in page.inner_text("body"):
        assert time.monotonic() < end, f"no tooltip {text}"
        picture.scroll_into_view_if_needed()
        box = picture.bounding_box()
        page.mouse.move(box["x"] + box["width"] * across, box["y"] + box["height"] * down, steps=3)


def test_the_scales_of_a_saved_tensor_are_drawn_next_to_it(open_view: Open, tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).normal(size=(64, 96)).astype(np.float32)
    matrix[20, 40] = 1000.0  # block (20, 1)
    matrix[40, :32] = 0.0
    item = saved(tmp_path / "t" / "step0" / "rank", "x", matrix)
    write_dump(tmp_path / "t", {"Functional.relu.0.forward": call(item, output=item)}, task="tensor")
    page = open_view(tmp_path / "t").page
    page.evaluate("document.querySelector('#rows .row').click()")
    page.keyboard.press("o")
    page.wait_for_selector("#scales_format")
    assert page.locator("#scales_picture").count() == 0
    page.select_option("#scales_format", "mxfp8")
    page.wait_for_selector("#scales_picture")
    size = page.evaluate(
        "(() => { const c = document.getElementById('scales_picture'); return [c.width, c.height]; })()"
    )
    assert size == [3, 64]
    strongest = page.evaluate(
        "(() => { const c = document.getElementById('scales_picture');"
        " const d = c.getContext('2d').getImageData(0, 0, 3, 64).data;"
        " return [d[(20 * 3 + 1) * 4 + 1], d[(40 * 3) * 4 + 3], d[4 + 1]]; })()"
    )
    assert strongest[0] < 40 < strongest[2]  # the block of the outlier is the strongest colour
    assert strongest[1] == 0  # a block of zeros is transparent
    assert "block 1 × 32" in page.inner_text("#scales_axes")
    point_at(page, 0.5, 20.5 / 64, "block (20, 1)")
    until(page, "document.body.innerText.includes('scale 2 (2^1)')")
    until(page, "document.body.innerText.includes('largest |x| 1000')")
    page.select_option("#scales_along", "columns")
    until(page, "document.getElementById('scales_picture').height === 2")
    assert "block 32 × 1" in page.inner_text("#scales_axes")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("d")
    until(page, "document.documentElement.dataset.theme === 'dark'")
    pixel = "document.getElementById('scales_picture').getContext('2d').getImageData(40, 0, 1, 1).data"
    until(page, f"{pixel}[0] === 255 && {pixel}[1] === 122")  # the strongest colour of the dark theme
    page.locator("#scales_picture").scroll_into_view_if_needed()
