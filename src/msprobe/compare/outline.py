"""Finds ranks that are the same on both sides by their bytes, without comparing rows.

Most ranks of a large job agree with their counterparts to the last bit. For these, both dump.json files are read and
compared as bytes; no row is made. The number of rows of such a rank, and how each is judged, depends on everything in
the file except its numbers: the `outline`. The first rank with an outline is compared in full, and its counts are valid
for all others with the same outline.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

from msprobe.compare.sources import Pair, Source
from msprobe.dump import layout
from msprobe.dump.reader import RankDump
from msprobe.dump.untrusted.json_files import parse_json, read_json
from msprobe.dump.untrusted.regular_files import read_regular

_BESIDE = (layout.CONSTRUCT, layout.TRAINING, layout.DEBUG)
"""The other files, apart from dump.json, that a comparison depends on. The source lines in stack.json only describe
differences."""
_NUMBERS = b"0123456789.+-eE"
_ODD = re.compile(rb'"(?:Max|Min|Me?an|Norm)":\s*(?:null|"|NaN|-?Inf)')
_SAVED, _SHAPE, _MAXIMUM, _CHECKSUMS = b'"data_nam"', b'"shap"', b'"Max"', b'"md"'
"""data_name, shape, Max and md5 in a text without its numbers."""
_CHECKSUM = re.compile(rb'"md5":\s*"[0-9a-fA-F]*"')
_DATA = re.compile(rb'"data"\s*:\s*(?=\{)')


class _Traits(NamedTuple):
    """What a text without its numbers says."""

    is_unknown: bool
    """Whether it names saved tensors, or has tensors without any value: no digest shows that these are equal."""
    has_checksums: bool
    is_odd: bool
    """There are tensors without finite statistics."""


_traits: dict[bytes, _Traits] = {}
"""By the digest of a text without its numbers: the ranks of a job share it, and searching costs more than hashing."""
_sound: set[bytes] = set()
"""The digests of files that were read without trouble."""


def outline_of(pair: Pair[Source]) -> Optional[bytes]:
    """A digest that is equal for pairs that get the same counts; None if the two sides may differ. With saved tensors
    it is also None: statistics do not show the order of elements, so the files are compared."""
    target, golden = pair.target, pair.golden
    if not isinstance(target, RankDump) or not isinstance(golden, RankDump):
        return None
    try:
        main = _read_both(target.path, golden.path, layout.DUMP)
        records = None if main is None else _same_records(*main)
        if records is None:
            return None
        parts = [records]
        for name in _BESIDE:
            both = _read_both(target.path, golden.path, name)
            if both is not None:
                if both[0] != both[1]:
                    return None
                parts.append(both[0])
    except OSError:
        return None
    digests = [_digest_without_numbers(part) for part in parts]
    return None if None in digests else b"".join(digest for digest in digests if digest is not None)


def _read_both(target: Path, golden: Path, name: str) -> Optional[tuple[bytes, bytes]]:
    """The bytes of a file on both sides; None if neither has it. Raises OSError if only one has it."""
    if not (target / name).exists() and not (golden / name).exists():
        return None
    return read_regular(target / name, target), read_regular(golden / name, golden)


def _same_records(target: bytes, golden: bytes) -> Optional[bytes]:
    """The text of both dump.json if they are equal; only that of the records if just the directory differs."""
    if target == golden:
        return target
    starts = _DATA.search(target), _DATA.search(golden)
    if starts[0] is None or starts[1] is None:
        return None
    heads = _head(target[: starts[0].start()]), _head(golden[: starts[1].start()])
    ours, theirs = starts[0].end(), starts[1].end()
    if heads[0] is None or heads[0] != heads[1] or len(target) - ours != len(golden) - theirs:
        return None
    records = target[ours:]
    return records if records == golden[theirs:] else None


def _head(text: bytes) -> Optional[dict[str, Any]]:
    """The text before the records; None if it is not simple."""
    try:
        head = parse_json(text + b'"data":0}')
    except ValueError:
        return None
    return {key: value for key, value in head.items() if key != "dump_data_dir"} if isinstance(head, dict) else None


def _digest_without_numbers(text: bytes) -> Optional[bytes]:
    """None if the values are not in the text. An item without finite statistics is judged by its numbers: they stay."""
    bare = text.translate(None, _NUMBERS)
    digest = _digest(bare)
    traits = _traits.get(digest)
    if traits is None:
        traits = _traits_of(bare)
        if not traits.has_checksums:  # with checksums, no two texts are equal
            _traits[digest] = traits
    if traits.is_unknown:
        return None
    if traits.has_checksums:
        text = _CHECKSUM.sub(b"md5", text)
        digest = _digest(text.translate(None, _NUMBERS))
    if traits.is_odd:
        return _digest(digest + b"".join(_items_around(text, _ODD)))
    return digest


def _traits_of(bare: bytes) -> _Traits:
    checksums = bare.count(_CHECKSUMS)
    valued = max(checksums, bare.count(_MAXIMUM))
    return _Traits(_SAVED in bare or bare.count(_SHAPE) > valued, bool(checksums), _ODD.search(bare) is not None)


def _items_around(text: bytes, pattern: re.Pattern[bytes]) -> Iterator[bytes]:
    for found in pattern.finditer(text):
        yield text[text.rfind(b"{", 0, found.start()) : text.find(b"}", found.end()) + 1]


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()  # CPUs have instructions for it


def troubles_of(source: Source) -> list[str]:
    """`source.troubles`, without parsing files that are equal to earlier ones without trouble: most ranks share
    them."""
    if not isinstance(source, RankDump) or source.unfinished:
        return source.troubles
    digests = set()
    try:
        for name in (layout.STACK, *_BESIDE):
            if (source.path / name).exists():
                digests.add(_digest(name.encode() + read_regular(source.path / name, source.path)))
    except OSError:
        return source.troubles
    if digests <= _sound and _has_sound_run(source.path):
        return [] if source.loss is None else [source.loss]
    troubles = source.troubles
    if not troubles:
        _sound.update(digests)
    return troubles


def _has_sound_run(path: Path) -> bool:
    """Whether run.json, which each rank has for itself, can be read, or there is none."""
    file = path / layout.RUN
    try:
        return not file.exists() or isinstance(read_json(file, path), dict)
    except (OSError, ValueError):
        return False
