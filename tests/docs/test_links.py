"""Every relative link in every markdown file leads somewhere."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from .documents import ROOT, anchors, links, markdown_files


@pytest.mark.parametrize("path", markdown_files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    broken = []
    for link in links(path):
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not target.exists() or (parts.fragment and unquote(parts.fragment) not in anchors(target)):
            broken.append(link)
    assert broken == []
