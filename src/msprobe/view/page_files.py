"""The files of the page: its modules are joined into one script, for the server (one request) and for an export.

Joining needs no build tool because the modules follow one rule: named imports at the top of a file, names of files
that are unique, and `export` only before `function`, `const`, `let` or `class`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Optional

FOLDER = Path(__file__).parent / "page"
KINDS = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
         ".js": "text/javascript; charset=utf-8"}  # fmt: skip
ENTRY = "main.js"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "[./]+/(?:views/)?([a-z_]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function|const|let|class) ([A-Za-z_$][\w$]*)", re.MULTILINE)


class PageFile(NamedTuple):
    body: bytes
    kind: str


@lru_cache(maxsize=1)
def _all() -> dict[str, PageFile]:
    paths = [path for path in sorted(FOLDER.rglob("*")) if path.suffix in KINDS]
    return {
        f"/{path.relative_to(FOLDER).as_posix()}": PageFile(path.read_bytes(), KINDS[path.suffix]) for path in paths
    }


def served(path: str) -> Optional[PageFile]:
    """The file for the path of a request, or None. The names are a fixed list: no other file can be requested."""
    if path == f"/{ENTRY}":
        return PageFile(joined_script().encode(), KINDS[".js"])
    return _all().get({"/": "/index.html", "/style.css": "/style.css"}.get(path, ""))


def text(name: str) -> str:
    """The content of a file of the page, by its name, from any folder."""
    return next(file.body.decode() for path, file in _all().items() if path.rpartition("/")[2] == name)


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
    source = text(name)
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
