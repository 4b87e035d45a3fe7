"""The page as one document: its modules are joined into one script, for the server (one request) and for an export.

Joining needs no build tool because the modules follow one rule: named imports at the top of a file, names of files
that are unique, and `export` only before `function`, `const`, `let` or `class`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "page"
ENTRY = "main.js"
_STYLE = '<link rel="stylesheet" href="style.css">'
_SCRIPT = '<script type="module" src="main.js"></script>'
_POLICY = '<meta name="policy">'
_IMPORT = re.compile(r'^import \{([^}]*)\} from "[./]+/(?:views/)?([a-z_]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function|const|let|class) ([A-Za-z_$][\w$]*)", re.MULTILINE)


class Page(NamedTuple):
    """The text before the data of the page and the text after it; `policy` allows only its own script and style."""

    before: str
    after: str
    policy: str


@lru_cache(maxsize=2)
def page(offline: bool = False) -> Page:
    """`offline`: a file has no server, so its policy is in the file and forbids every request."""
    style, script = _text("style.css"), joined_script()
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
    policy += "base-uri 'none'" if offline else "connect-src 'self'; base-uri 'none'"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n' if offline else ""
    text = _text("index.html").replace(f"{_POLICY}\n", meta).replace(_STYLE, f"<style>{style}</style>")
    before, _, after = text.partition(_SCRIPT)
    return Page(before, f"<script>{script}</script>{after}", policy)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _text(name: str) -> str:
    """The content of a file of the page, by its name, from any folder."""
    return next(FOLDER.rglob(name)).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def joined_script() -> str:
    """All modules as one script: each a function that returns what it exports, in the order of their imports."""
    parts: list[str] = ['"use strict";\n']
    _join(ENTRY, parts, set())
    return "".join(parts)


def _join(name: str, parts: list[str], done: set[str]) -> None:
    if name in done:
        return
    done.add(name)
    source = _text(name)
    for _, needed in _IMPORT.findall(source):
        _join(needed, parts, done)
    body = _IMPORT.sub(lambda found: f"const {{{_renamed(found[1])}}} = {_variable(found[2])};\n", source)
    names = [found[1] for found in _EXPORT.findall(source)]
    body = _EXPORT.sub(r"\1 \2", body)
    parts.append(f"const {_variable(name)} = (() => {{\n{body}\nreturn {{{', '.join(names)}}};\n}})();\n")


def _renamed(names: str) -> str:
    """`a as b` in an import becomes `a: b` in an object."""
    return ", ".join(name.strip().replace(" as ", ": ") for name in names.split(",") if name.strip())


def _variable(name: str) -> str:
    return "module_" + name.removesuffix(".js")
