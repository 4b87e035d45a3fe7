"""Reads our markdown: its links, and its code blocks with the marker that says what a test does with each.

A block of python, sh or json has a marker, an HTML comment on the line before it:
  <!-- file: NAME -->            it is a file: it is written to the working directory
  <!-- run -->, <!-- run: 1 -->  it is run there, and ends with exit code 0, or 1
  <!-- output -->                its lines are printed by the block that was run last
  <!-- not run: reason -->       nothing is done
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_MARKER = re.compile(r"<!-- (file|run|output|not run)(?:: (.*?))? -->\n\Z")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    action: str  # file, run, output, not run, or "" for a block without marker
    detail: str
    line: int


def markdown_files() -> list[Path]:
    """Every .md of the project; not those of virtual environments and builds."""
    places = [ROOT, ROOT / "docs", ROOT / "examples", ROOT / "tests", ROOT / "benchmarks", ROOT / "src"]
    found = {path for place in places[1:] for path in place.rglob("*.md")}
    return sorted(found | set(ROOT.glob("*.md")))


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text(encoding="utf-8")
    for fence in _FENCE.finditer(text):
        marker = _MARKER.search(text[: fence.start()])
        action, detail = (marker[1], marker[2] or "") if marker else ("", "")
        yield Block(fence[1], fence[2], action, detail, text.count("\n", 0, fence.start()) + 1)


def links(path: Path) -> list[str]:
    return _LINK.findall(_FENCE.sub("", path.read_text(encoding="utf-8")))


def anchors(path: Path) -> set[str]:
    """What `#…` may point to, as GitHub makes it out of headings."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ +(.*?) *$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
